"""Failovers of vbuckets and replicas, also amid a move, without a socket."""

from collections.abc import Callable

import pytest

from dcp.producer.bucket import ProducerBucket
from dcp.producer.bucket_states import set_state, set_state_of_replica, set_up
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.failover import fail_over
from dcp.producer.writes.document_writer import checked
from dcp.server.model.state_changes import StateEvent
from dcp.wire.vocabulary import VbucketState

OWNER, HEIR = 0, 1


def _bucket() -> ProducerBucket:
    """One vbucket with a document at its owner, and empty replicas on three other nodes."""
    bucket = ProducerBucket(ClusterSettings(nodes=4, vbuckets=1, replicas=3))
    with bucket.lock:
        bucket.writers[0].store(b"k", checked(b"1"), 0.0)
        bucket.writes.wrote(0)
    return bucket


def _hand_over(bucket: ProducerBucket) -> None:
    bucket.vbuckets[0].change(StateEvent.HANDED_OVER)
    bucket.vbuckets[0].is_handed_over = True


def test_the_heir_goes_on_with_its_replica() -> None:
    bucket = _bucket()
    replica = bucket.replicas.at(HEIR, 0)
    assert replica is not None
    log = replica.vbucket.failover_log
    with bucket.lock:
        fail_over(bucket, OWNER)
    assert bucket.vbuckets[0] is replica.vbucket
    assert (replica.vbucket.state, replica.vbucket.data.high_seqno) == (VbucketState.ACTIVE, 0)
    assert replica.vbucket.failover_log != log
    assert {node for node, _ in bucket.replicas.of(0)} == {2, 3}


def test_a_failover_amid_a_move() -> None:
    """What was handed over goes on at the heir; it is not dead because it was at its owner."""
    bucket = _bucket()
    with bucket.lock:
        _hand_over(bucket)
        fail_over(bucket, OWNER)
    assert bucket.map.owners == (HEIR,)
    assert bucket.vbuckets[0].state is VbucketState.ACTIVE
    assert bucket.vbuckets[0].data.high_seqno == 0
    assert not bucket.vbuckets[0].is_handed_over


def _set_up(bucket: ProducerBucket) -> None:
    set_up(bucket, 0, bucket.vbuckets[0].facts())


@pytest.mark.parametrize("moves", ["moving", "handed over"])
@pytest.mark.parametrize(
    ("what", "order"),
    [
        ("change of state", lambda bucket: set_state(bucket, 0, VbucketState.ACTIVE)),
        ("change of state", lambda bucket: set_state(bucket, 0, VbucketState.DEAD)),
        (
            "change of state",
            lambda bucket: set_state_of_replica(bucket, 0, HEIR, VbucketState.DEAD),
        ),
        ("replacement", _set_up),
    ],
)
def test_what_moves_takes_no_orders(
    moves: str, what: str, order: Callable[[ProducerBucket], None]
) -> None:
    """Else it would be active twice, or what was ordered would be lost with it."""
    bucket = _bucket()
    if moves == "moving":
        with bucket.lock:
            bucket.table.set_moving({0})
    else:
        _hand_over(bucket)
    held = bucket.vbuckets[0], bucket.replicas.at(HEIR, 0)
    states = [each.state for each in bucket.vbuckets]
    expected = f"^{what} of vbucket 0: found a rebalance that moves it; repeat the order"
    with bucket.lock, pytest.raises(ValueError, match=expected):
        order(bucket)
    assert held == (bucket.vbuckets[0], bucket.replicas.at(HEIR, 0))
    assert [each.state for each in bucket.vbuckets] == states


@pytest.mark.parametrize("state", [VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD])
def test_a_vbucket_that_is_not_active_stays_that(state: VbucketState) -> None:
    bucket = _bucket()
    set_state(bucket, 0, state)
    replica = bucket.replicas.at(HEIR, 0)
    assert replica is not None
    log = replica.vbucket.failover_log
    with bucket.lock:
        fail_over(bucket, OWNER)
    assert bucket.vbuckets[0] is replica.vbucket
    assert (replica.vbucket.state, replica.vbucket.failover_log) == (state, log)
