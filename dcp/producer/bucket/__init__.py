"""A bucket: its vbuckets and copies, what writes them to disk, and its DCP connections."""
