"""What a process does when the map names other owners: a table, without a socket."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.errors import LocalProtocolError
from dcp.producer.bucket import Bucket
from dcp.producer.bucket_states import set_state, set_state_of_copy, set_up
from dcp.producer.forks import fail_over
from dcp.producer.ownership import follow_owners, settle_moves
from dcp.producer.replica_copy import CopyPhase
from dcp.producer.settings import ClusterSettings
from dcp.producer.state_changes import StateEvent
from dcp.wire.vocabulary import VbucketState

HERE, ALSO_HERE, ELSEWHERE, FAR = 0, 1, 2, 3


def _bucket(owner: int) -> Bucket:
    """One vbucket with a document at its owner, two nodes here and two elsewhere."""
    bucket = Bucket(ClusterSettings(nodes=4, vbuckets=1, replicas=3))
    bucket.local_nodes -= {ELSEWHERE, FAR}
    bucket.copies.follow(bucket.map)
    bucket.map.move(0, owner)
    bucket.copies.follow(bucket.map)
    if owner in bucket.local_nodes:
        bucket.vbuckets[0].documents.set(b"k", b"1", 0.0)
        bucket.wrote(0)
    else:
        bucket.let_go(0)
    return bucket


@pytest.mark.parametrize(
    ("old", "new", "takes_over", "state", "begins_branch", "high_seqno"),
    [
        (HERE, ELSEWHERE, False, VbucketState.DEAD, True, 0),
        (HERE, ALSO_HERE, False, VbucketState.ACTIVE, True, 0),
        (HERE, ALSO_HERE, True, VbucketState.ACTIVE, False, 0),
        (ELSEWHERE, HERE, False, VbucketState.ACTIVE, True, 0),
        (ELSEWHERE, HERE, True, VbucketState.ACTIVE, False, 0),
        (ELSEWHERE, FAR, False, VbucketState.DEAD, True, 0),
        (HERE, HERE, False, VbucketState.ACTIVE, True, 1),
    ],
)
def test_what_follows(
    old: int, new: int, takes_over: bool, state: VbucketState, begins_branch: bool, high_seqno: int
) -> None:
    bucket = _bucket(old)
    copy = bucket.copies.at(new, 0)
    log = None if copy is None else copy.vbucket.failover_log
    if copy is not None and takes_over:
        copy.begin_takeover()
        copy.arrive()
    before = list(bucket.map.owners)
    if new != old:
        bucket.map.move(0, new)
    with bucket.lock:
        follow_owners(bucket, before)
        bucket.copies.follow(bucket.map)
    assert bucket.vbuckets[0].state is state
    assert bucket.vbuckets[0].data.high_seqno == high_seqno
    assert (bucket.vbuckets[0].failover_log != log) is begins_branch
    held = {node for node, _ in bucket.copies.of(0)}
    assert held == {HERE, ALSO_HERE} - {new}


@pytest.mark.parametrize(
    ("moving", "owner", "state"),
    [
        (True, HERE, VbucketState.DEAD),
        (False, HERE, VbucketState.ACTIVE),
        (False, ELSEWHERE, VbucketState.DEAD),
    ],
)
def test_a_vbucket_that_was_handed_over(moving: bool, owner: int, state: VbucketState) -> None:
    """Dead while it moves; active again where the map still has it when that is over."""
    bucket = _bucket(HERE)
    bucket.vbuckets[0].change(StateEvent.HANDED_OVER)
    bucket.vbuckets[0].is_handed_over = True
    bucket.moving = frozenset({0} if moving else set())
    before = list(bucket.map.owners)
    if owner != HERE:
        bucket.map.move(0, owner)
        follow_owners(bucket, before)
    with bucket.lock:
        settle_moves(bucket)
    assert bucket.vbuckets[0].state is state
    assert bucket.vbuckets[0].is_handed_over is moving


@pytest.mark.parametrize("moving", [True, False])
def test_a_vbucket_that_arrived_waits_for_the_map(moving: bool) -> None:
    """Where the move is over and the map does not have it here it is a copy as before."""
    bucket = _bucket(ELSEWHERE)
    copy = bucket.copies.at(HERE, 0)
    assert copy is not None
    copy.begin_takeover()
    copy.arrive()
    copy.vbucket.change(StateEvent.TOLD_PENDING)
    bucket.moving = frozenset({0} if moving else set())
    with bucket.lock:
        settle_moves(bucket)
    assert bucket.held.owned(0, HERE) is None
    assert (copy.has_taken_over, copy.is_taking_over) == (moving, moving)
    assert copy.vbucket.state is (VbucketState.PENDING if moving else VbucketState.REPLICA)


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_failover_amid_a_move(is_copied: bool) -> None:
    """What was handed over goes on at the heir; it is not dead because it was at its owner."""
    bucket = _bucket(HERE)
    bucket.vbuckets[0].change(StateEvent.HANDED_OVER)
    bucket.vbuckets[0].is_handed_over = True
    if not is_copied:
        bucket.copies.take(ALSO_HERE, 0)
    before = list(bucket.map.owners)
    bucket.map.move(0, ALSO_HERE)
    with bucket.lock:
        follow_owners(bucket, before)
    assert bucket.vbuckets[0].state is VbucketState.ACTIVE
    assert not bucket.vbuckets[0].is_handed_over


@pytest.mark.parametrize("has_arrived", [False, True])
@pytest.mark.parametrize("old", [HERE, ELSEWHERE])
def test_without_copies_what_was_taken_over_is_the_vbucket(old: int, has_arrived: bool) -> None:
    """What is still being filled is not: the vbucket goes on itself, where it is here."""
    bucket = Bucket(ClusterSettings(nodes=4, vbuckets=1))
    bucket.local_nodes -= {ELSEWHERE, FAR}
    bucket.map.move(0, old)
    bucket.moving = frozenset({0})
    before = list(bucket.map.owners)
    with bucket.lock:
        if old == HERE:
            bucket.vbuckets[0].change(StateEvent.HANDED_OVER)
            bucket.vbuckets[0].is_handed_over = True
        else:
            bucket.let_go(0)
        taken = bucket.copies.add(ALSO_HERE, 0)
        taken.begin_takeover()
        if has_arrived:
            taken.arrive()
        bucket.map.move(0, ALSO_HERE)
        follow_owners(bucket, before)
        bucket.copies.follow(bucket.map)
    found = bucket.vbuckets[0]
    assert (found is taken.vbucket) is has_arrived
    is_here = has_arrived or old == HERE
    assert found.state is (VbucketState.ACTIVE if is_here else VbucketState.DEAD)
    assert bucket.copies.at(ALSO_HERE, 0) is None
    assert bucket.held.at(0, ALSO_HERE) is found


def test_a_failover_amid_a_move_in_a_data_folder(tmp_path: Path) -> None:
    """The heir was being filled: after a restart, too, the vbucket is what it was at its owner."""
    settings = ClusterSettings(nodes=2, vbuckets=1, data_folder=tmp_path)
    bucket = Bucket(settings)
    with bucket.lock:
        bucket.vbuckets[0].documents.set(b"k", b"1", 0.0)
        bucket.wrote(0)
        bucket.moving = frozenset({0})
        bucket.copies.add(ALSO_HERE, 0).begin_takeover()
        fail_over(bucket, HERE)
        bucket.close()
    again = Bucket(settings)
    assert again.map.owners == (ALSO_HERE,)
    assert again.vbuckets[0].data.high_seqno == 1
    again.close()


def _set_up(bucket: Bucket) -> None:
    set_up(bucket, 0, bucket.vbuckets[0].facts())


@pytest.mark.parametrize("moves", ["moving", "handed over"])
@pytest.mark.parametrize(
    ("what", "order"),
    [
        ("change of state", lambda bucket: set_state(bucket, 0, VbucketState.ACTIVE)),
        ("change of state", lambda bucket: set_state(bucket, 0, VbucketState.DEAD)),
        (
            "change of state",
            lambda bucket: set_state_of_copy(bucket, 0, ALSO_HERE, VbucketState.DEAD),
        ),
        ("replacement", _set_up),
    ],
)
def test_what_moves_takes_no_orders(moves: str, what: str, order: Callable[[Bucket], None]) -> None:
    """Else it would be active twice, or what was ordered would be lost with it."""
    bucket = _bucket(HERE)
    if moves == "moving":
        bucket.moving = frozenset({0})
    else:
        bucket.vbuckets[0].change(StateEvent.HANDED_OVER)
        bucket.vbuckets[0].is_handed_over = True
    held = bucket.vbuckets[0], bucket.copies.at(ALSO_HERE, 0)
    states = [each.state for each in bucket.vbuckets]
    expected = f"^{what} of vbucket 0: found one that a rebalance moves now; order it when"
    with bucket.lock, pytest.raises(ValueError, match=expected):
        order(bucket)
    assert held == (bucket.vbuckets[0], bucket.copies.at(ALSO_HERE, 0))
    assert [each.state for each in bucket.vbuckets] == states


@pytest.mark.parametrize("state", [VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD])
def test_a_vbucket_that_is_not_active_stays_that(state: VbucketState) -> None:
    bucket = _bucket(HERE)
    set_state(bucket, 0, state)
    copy = bucket.copies.at(ALSO_HERE, 0)
    assert copy is not None
    log, before = copy.vbucket.failover_log, list(bucket.map.owners)
    bucket.map.move(0, ALSO_HERE)
    with bucket.lock:
        follow_owners(bucket, before)
    assert bucket.vbuckets[0] is copy.vbucket
    assert (copy.vbucket.state, copy.vbucket.failover_log) == (state, log)


def test_the_phases_of_a_copy() -> None:
    """It arrives only where it was taken over, and can be left at any time."""
    copy = _bucket(HERE).copies.at(ALSO_HERE, 0)
    assert copy is not None
    with pytest.raises(LocalProtocolError, match="found FED, which cannot arrive"):
        copy.arrive()
    copy.leave()
    copy.begin_takeover()
    with pytest.raises(LocalProtocolError, match="found TAKING_OVER, which cannot begin"):
        copy.begin_takeover()
    copy.leave()
    copy.begin_takeover()
    copy.arrive()
    assert (copy.is_taking_over, copy.has_taken_over, copy.feeder) == (True, True, None)
    copy.leave()
    assert copy.phase is CopyPhase.FED


def test_what_is_let_go_waits_for_the_disk_no_more(tmp_path: Path) -> None:
    bucket = Bucket(ClusterSettings(vbuckets=1, data_folder=tmp_path, flush_seconds=3600.0))
    with bucket.lock:
        bucket.vbuckets[0].documents.set(b"k", b"1", 0.0)
        bucket.wrote(0)
        assert bucket.flusher is not None
        assert bucket.flusher.pending_bytes > 0
        bucket.held.let_go(0)
        assert bucket.flusher.pending_bytes == 0
        bucket.close()
