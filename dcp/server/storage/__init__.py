"""Vbuckets on disk: the log of each, its index, scans and compaction, and the data folder."""
