"""Keeping a lake small: compaction, cleaning, retention."""
