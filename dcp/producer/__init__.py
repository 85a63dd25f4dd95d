"""The reference producer: a whole cluster for tests and `dcplake serve`, and its clients."""
