"""Receives streams in a task, and yields batches of the change log."""
