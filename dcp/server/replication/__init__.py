"""Replication between nodes: feeds of copies, and rebalance."""
