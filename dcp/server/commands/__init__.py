"""The commands of a node: KV, DCP, statistics and administration."""
