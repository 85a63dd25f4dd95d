"""Replication between nodes: passive streams that fill replicas, and their background tasks."""
