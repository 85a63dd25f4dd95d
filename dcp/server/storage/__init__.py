"""Vbuckets on disk: the disk log of each, its index, scans and compaction, and the data folder."""
