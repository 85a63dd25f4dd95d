"""What a node answers: KV, DCP, statistics and orders of administrators."""
