"""Checkpoints: the newest items of a vbucket in memory, and the cursors of its streams."""
