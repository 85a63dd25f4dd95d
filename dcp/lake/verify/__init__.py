"""Comparing a lake with its bucket."""
