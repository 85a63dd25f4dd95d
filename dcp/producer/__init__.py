"""The reference producer: a cluster for tests and `dcplake serve`."""
