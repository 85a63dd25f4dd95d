"""Nodes: sockets, the loop, HTTP, and the cluster that tests and `dcplake serve` start."""
