"""Maintenance of a lake: compaction, cleaning, retention."""
