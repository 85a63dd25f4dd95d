"""A process that joined does here what the first one orders: it follows its states, and takes over.

A state that was followed only in part, as something of it failed, is not known: the first process
hears that its order failed and says it again, and what was done is not done twice.
"""

from collections.abc import Callable

from dcp.producer.bucket import Bucket
from dcp.producer.cluster_state import ClusterState
from dcp.producer.move_orders import MoveOrder, MoveReport
from dcp.producer.ownership import follow_owners, settle_moves
from dcp.producer.stream_ends import end_streams
from dcp.producer.taking import Taking


class Follower:
    """The orders of the first process; methods run in the loop's thread, under the lock."""

    def __init__(self, bucket: Bucket, taking: Taking, map_changed: Callable[[], object]) -> None:
        """``map_changed`` is called with each new state, once it holds here."""
        self._bucket = bucket
        self._taking = taking
        self._map_changed = map_changed
        self._known_number = 0
        self._owners = list(bucket.map.owners)
        """Those that were followed."""

    def follow(self, state: ClusterState) -> None:
        """Let all be as the state says; an older one than is known changes nothing."""
        if state.number <= self._known_number:
            return
        bucket = self._bucket
        bucket.map.adopt(state.addresses, state.members, state.owners, state.rows, state.rev)
        bucket.led_by = state.first_address
        bucket.moving = state.moving
        if state.is_paused is not bucket.replicas.is_paused:
            (bucket.replicas.pause if state.is_paused else bucket.replicas.resume)()
        own = bucket.local_nodes
        bucket.dead_nodes = set(state.dead - own) | (bucket.dead_nodes & own)
        follow_owners(bucket, self._owners)
        settle_moves(bucket)
        for node, vbucket in bucket.copies.follow(bucket.map):
            end_streams(bucket, vbucket, node)
        bucket.collections.told(state.manifest)
        self._known_number = state.number
        self._map_changed()

    def take(self, order: MoveOrder) -> None:
        """Begin to take vbuckets over, if that was not begun."""
        self._taking.begin(order)

    def leave(self) -> None:
        """Take no more vbuckets over than have arrived."""
        self._taking.leave()

    def report(self) -> MoveReport:
        """Return how far the last move is."""
        return self._taking.report()
