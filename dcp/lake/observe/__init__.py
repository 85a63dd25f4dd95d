"""Figures of a lake, read from its own tables, and their metrics."""
