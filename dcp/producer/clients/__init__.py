"""Clients of a producer, for loading documents and for administration."""
