"""A process that follows the first one: what it could not do of a state it does when told again."""

import asyncio
from dataclasses import replace

import pytest

from dcp.producer.bucket import Bucket
from dcp.producer.cluster_state import ClusterState
from dcp.producer.follower import Follower
from dcp.producer.settings import ClusterSettings
from dcp.producer.taking import Taking
from dcp.wire.vocabulary import VbucketState

FIRST, HERE = 0, 1
VBUCKETS = 4


@pytest.fixture
def bucket() -> Bucket:
    """All vbuckets are at the first process, and copied to this one."""
    bucket = Bucket(ClusterSettings(nodes=2, vbuckets=VBUCKETS, replicas=1))
    bucket.local_nodes.discard(FIRST)
    for vbucket in range(VBUCKETS):
        bucket.map.move(vbucket, FIRST)
        bucket.let_go(vbucket)
    bucket.copies.follow(bucket.map)
    return bucket


def _failed_over(bucket: Bucket) -> ClusterState:
    """The state in which the first process's node was failed over."""
    rows = tuple((-1,) for _ in range(VBUCKETS))
    state = ClusterState.of(bucket, 1)
    return replace(state, rev=9, owners=(HERE,) * VBUCKETS, rows=rows, members=(False, True))


@pytest.mark.parametrize("fails_at", range(VBUCKETS))
def test_what_failed_is_done_when_the_state_is_told_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Each vbucket is promoted once: one branch begins, not another with each attempt."""
    pushed: list[int] = []
    taking = Taking(bucket, lambda _: asyncio.Event(), lambda: None)
    follower = Follower(bucket, taking, lambda: pushed.append(bucket.map.rev))
    state = _failed_over(bucket)
    promoted: list[int] = []
    promote = bucket.replicas.promote

    def fail_once(vbucket: int, node: int, was: VbucketState) -> None:
        if vbucket == fails_at and promoted.count(-1) == 0:
            promoted.append(-1)
            raise OSError(28, "No space left on device")
        promoted.append(vbucket)
        promote(vbucket, node, was)

    monkeypatch.setattr(bucket.replicas, "promote", fail_once)
    with bucket.lock:
        with pytest.raises(OSError, match="No space left"):
            follower.follow(state)
        assert pushed == []
        follower.follow(state)
        follower.follow(state)
    assert [each.state for each in bucket.vbuckets] == [VbucketState.ACTIVE] * VBUCKETS
    others = [*range(fails_at + 1, VBUCKETS)]
    assert promoted == [*range(fails_at), -1, *others, fails_at]
    assert pushed == [9]
