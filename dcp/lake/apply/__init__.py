"""Applies the change log to the replica tables, rollbacks included."""
