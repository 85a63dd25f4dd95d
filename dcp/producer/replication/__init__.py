"""Connections between nodes: copies that are filled, vbuckets that move."""
