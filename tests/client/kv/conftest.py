"""Fixtures of the tests of KV clients: the producer's."""

from tests.producer.conftest import clock, make_cluster

__all__ = ["clock", "make_cluster"]
