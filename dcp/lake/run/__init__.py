"""Rounds and applies, one after the other or side by side."""
