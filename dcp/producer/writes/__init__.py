"""Writes of clients: documents, their expiry, and writes that wait for a majority of nodes."""
