"""The newest items of a vbucket in memory, in checkpoints, with the cursors of its streams."""
