"""Blocking clients of KV commands: they ask nodes, load documents, and order a producer."""
