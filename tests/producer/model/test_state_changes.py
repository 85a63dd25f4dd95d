"""The table of a vbucket's states, and what follows from every change."""

import pytest

from dcp.errors import LocalProtocolError
from dcp.producer.bucket import ProducerBucket
from dcp.producer.bucket_states import change_state, give_back
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import checked
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.state_changes import ORDERED, StateEvent, next_state
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.wire.vocabulary import Opcode, Status, VbucketState

ACTIVE, REPLICA, PENDING, DEAD = (
    VbucketState.ACTIVE,
    VbucketState.REPLICA,
    VbucketState.PENDING,
    VbucketState.DEAD,
)
COMES_TO = {
    StateEvent.ORDERED_ACTIVE: (ACTIVE, True, {REPLICA, PENDING, DEAD}),
    StateEvent.ORDERED_REPLICA: (REPLICA, False, {ACTIVE, REPLICA, PENDING, DEAD}),
    StateEvent.ORDERED_PENDING: (PENDING, False, {ACTIVE, REPLICA, PENDING, DEAD}),
    StateEvent.ORDERED_DEAD: (DEAD, False, {ACTIVE, REPLICA, PENDING, DEAD}),
    StateEvent.PROMOTED: (ACTIVE, True, {REPLICA, PENDING, DEAD}),
    StateEvent.TOLD_PENDING: (PENDING, False, {REPLICA, PENDING, DEAD}),
    StateEvent.TAKEN_OVER: (ACTIVE, False, {REPLICA, PENDING, DEAD}),
    StateEvent.HANDED_OVER: (DEAD, False, {ACTIVE}),
    StateEvent.GIVEN_BACK: (ACTIVE, False, {DEAD}),
    StateEvent.LEFT: (REPLICA, False, {PENDING}),
}


@pytest.mark.parametrize("event", StateEvent)
@pytest.mark.parametrize("state", [ACTIVE, REPLICA, PENDING, DEAD])
def test_every_event_in_every_state(state: VbucketState, event: StateEvent) -> None:
    """A vbucket too: its branch begins where the table says so, and nothing else changes it."""
    after, begins_branch, possible = COMES_TO[event]
    vbucket = ProducerBucket(ClusterSettings(vbuckets=1)).vbuckets[0]
    if state is not ACTIVE:
        vbucket.change(ORDERED[state])
    log = vbucket.failover_log
    if state not in possible:
        with pytest.raises(
            LocalProtocolError, match=f"{event.value}: found .*{state.name}, expect"
        ):
            vbucket.change(event)
        assert (vbucket.state, vbucket.failover_log) == (state, log)
        return
    assert next_state(state, event) == (after, begins_branch)
    vbucket.change(event)
    assert vbucket.state is after
    assert (vbucket.failover_log != log) is begins_branch


def test_no_other_way() -> None:
    vbucket = ProducerBucket(ClusterSettings(vbuckets=1)).vbuckets[0]
    with pytest.raises(AttributeError):
        vbucket.state = DEAD  # type: ignore[misc]  # that it is refused is what is looked at


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (StateEvent.HANDED_OVER, StateEvent.GIVEN_BACK),
        (StateEvent.ORDERED_REPLICA, StateEvent.ORDERED_ACTIVE),
        (StateEvent.ORDERED_DEAD, StateEvent.TAKEN_OVER),
    ],
)
def test_durable_writes_go_on(there: StateEvent, back: StateEvent) -> None:
    """Not while the vbucket is another's; once it is active here again they are committed."""
    bucket = ProducerBucket(ClusterSettings(vbuckets=1))
    vbucket = bucket.vbuckets[0]
    prepare = bucket.write(b"k", lambda each: each.store(b"k", checked(b"1"), 0.0, level=1))
    told: list[Status] = []
    bucket.sync_writes._writes_of[0].track(prepare, bucket.now() + 30, told.append)
    change_state(bucket, vbucket, there)
    bucket.sync_writes.check()
    assert told == [Status.SYNC_WRITE_AMBIGUOUS]
    assert vbucket.data.high_seqno == 1
    change_state(bucket, vbucket, back)
    with pytest.raises(RefusedError) as refused:
        bucket.write(b"k", lambda each: each.store(b"k", checked(b"2"), 0.0))
    assert refused.value.status in (
        Status.SYNC_WRITE_IN_PROGRESS,
        Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
    )
    bucket.sync_writes.check()
    assert bucket.write(b"k", lambda each: each.store(b"k", checked(b"2"), 0.0)).seqno == 3


def test_what_is_given_back() -> None:
    """Only what is dead for that: what was ordered stands."""
    bucket = ProducerBucket(ClusterSettings(vbuckets=3))
    for vbucket in bucket.vbuckets[:2]:
        change_state(bucket, vbucket, StateEvent.HANDED_OVER)
        vbucket.is_handed_over = True
    for vbucket, event in zip(
        bucket.vbuckets[1:], (StateEvent.ORDERED_REPLICA, StateEvent.ORDERED_DEAD), strict=True
    ):
        change_state(bucket, vbucket, event)
    for vbucket in bucket.vbuckets:
        give_back(bucket, vbucket.id)
    assert [each.state for each in bucket.vbuckets] == [ACTIVE, REPLICA, DEAD]
    assert not any(each.is_handed_over for each in bucket.vbuckets)


def test_a_move_of_what_is_not_active() -> None:
    """It commits no prepare: that is for whoever is active."""
    cluster = ProducerCluster(ClusterSettings(nodes=2, vbuckets=1))
    prepare = Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(level=1))
    cluster.take_versions(0, [Version(0, b"k", prepare, seqno=1, rev=1, cas=1)])
    cluster.set_vbucket_state(0, REPLICA)
    cluster.move_vbucket(0, 1)
    cluster.bucket.sync_writes.check()
    assert cluster.high_seqno(0) == 1
