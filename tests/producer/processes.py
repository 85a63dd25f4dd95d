"""A cluster of two processes, each a ``ProducerCluster`` with a thread of its own."""

from collections.abc import Callable
from typing import Any

from dcp.producer.cluster import ProducerCluster
from dcp.producer.joined_cluster import JoinedCluster
from dcp.producer.vbucket import Vbucket
from tests.producer.compared_copies import frames_of

WAIT_SECONDS = 90.0


class Processes:
    """The first process with its own nodes, and one that joined with the last node."""

    def __init__(self, first: ProducerCluster, second: JoinedCluster) -> None:
        self.first, self.second = first, second

    @property
    def all(self) -> list[ProducerCluster]:
        return [self.first, self.second]

    def settle(self) -> None:
        """Wait until both know of the same cluster."""
        self.first.members.wait_until_told()

    def home_of(self, node: int) -> ProducerCluster:
        return next(each for each in self.all if each.bucket.is_local(node))

    def active(self, vbucket: int) -> Vbucket:
        """The vbucket at its owner, wherever that is."""
        owner = self.first.vbucket_owner(vbucket)
        return self.home_of(owner).bucket.vbuckets[vbucket]

    def set(self, key: bytes, value: bytes = b"1", **chosen: Any) -> None:
        owner = self.first.vbucket_owner(self.first.vbucket_of(key))
        self.home_of(owner).set(key, value, **chosen)

    def owners(self) -> list[int]:
        return [self.first.vbucket_owner(v) for v in range(self.first.settings.vbuckets)]

    def wait_until_dead(self, node: int) -> None:
        """Wait until the first process finds that a node does not answer."""
        self._wait_at_first(lambda: node in self.first.bucket.dead_nodes)

    def wait_until_alive(self, node: int) -> None:
        """Wait until the first process finds that a member answers."""
        self._wait_at_first(lambda: node not in self.first.bucket.dead_nodes)

    def wait_until_heard(self, node: int) -> None:
        """Wait until a node answers the first process, member or not."""
        self._wait_at_first(lambda: self.first.members.is_heard(node))

    def _wait_at_first(self, what: Callable[[], bool]) -> None:
        moved = self.first.bucket.copies_moved
        with moved:
            assert moved.wait_for(what, WAIT_SECONDS)

    def assert_copies_are_equal(self) -> None:
        """Every copy is, byte for byte, what its active is, in whatever process they are."""
        self.settle()
        for vbucket in range(self.first.settings.vbuckets):
            active = self.active(vbucket)
            nodes = self.first.bucket.map.replicas(vbucket)
            assert len(nodes) == self.first.settings.replicas
            for node in nodes:
                bucket = self.home_of(node).bucket
                with bucket.copies_moved:
                    assert bucket.copies_moved.wait_for(
                        lambda b=bucket, n=node, a=active: is_level(b.copies.at(n, a.id), a),  # type: ignore[misc]  # defaults bind what the loop changes
                        WAIT_SECONDS,
                    )
                    copy = bucket.copies.at(node, vbucket)
                    assert copy is not None
                    assert frames_of(copy.vbucket) == frames_of(active)


def is_level(copy: Any, active: Vbucket) -> bool:
    """Whether a copy holds what its active does, under the same log."""
    return (
        copy is not None
        and copy.high_seqno == copy.consistent_seqno == active.data.high_seqno
        and copy.vbucket.failover_log == active.failover_log
        and copy.vbucket.documents.collections.manifest == active.documents.collections.manifest
    )
