"""Verifies a lake against its bucket."""
