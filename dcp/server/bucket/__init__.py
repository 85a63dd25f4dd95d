"""A bucket: its vbuckets and copies, its flusher, and its DCP connections."""
