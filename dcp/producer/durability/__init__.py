"""Durable writes: a majority of copies acknowledges them before their clients are answered."""
