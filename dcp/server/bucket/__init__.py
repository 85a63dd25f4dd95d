"""A bucket: its vbuckets and replicas, its flusher, and its DCP connections."""
