"""Nodes: sockets, the loop, HTTP."""
