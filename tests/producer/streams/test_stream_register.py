"""The register of a connection's streams, and that no look at it goes over all of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.model.resume_rules import Verdict
from dcp.server.model.stream_filter import EVERYTHING
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import DcpClient, StreamSettings
from dcp.server.streams.stream_register import StreamRegister
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire.vocabulary import Opcode, Status, StreamFlag

VBUCKETS = 4
STREAMS = 200
"""Of each vbucket."""
looks: list[str] = []


class WatchedStream(ActiveStream):
    """Notes each time that anything of it is looked at."""

    def __getattribute__(self, name: str) -> object:
        looks.append(name)
        return super().__getattribute__(name)


def new_stream(
    bucket: ProducerBucket, vbucket: int, stream_id: int | None, opaque: int
) -> ActiveStream:
    return WatchedStream(
        bucket.vbuckets[vbucket].data,
        opaque,
        Verdict(Status.SUCCESS),
        StreamFlag.TAKEOVER if stream_id is None else 0,
        StreamSettings(0),
        replace(EVERYTHING, stream_id=stream_id),
    )


EMPTY = (MemoryFile(), ClusterSettings())


@pytest.fixture
def crowded() -> DcpConnection:
    """A connection with many streams of each vbucket."""
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    connection = bucket.dcp_connections.open(DcpClient((0, b"crowd"), 1), lambda: None)
    connection.negotiate(replace(connection.options, stream_ids=True))
    for vbucket in range(VBUCKETS):
        for number in range(1, STREAMS + 1):
            connection.add_stream(new_stream(bucket, vbucket, number, number))
    return connection


@pytest.mark.parametrize(
    ("act", "most_streams"),
    [
        (lambda one: one.takeover_answered(Opcode.DCP_SNAPSHOT_MARKER, 1), 0),
        (lambda one: one.takeover_answered(Opcode.DCP_SET_VBUCKET_STATE, 1), 0),
        (lambda one: one.vbuckets_changed({VBUCKETS}), 0),
        (lambda one: one.streams.of({0}), 0),
        (lambda one: one.is_streaming(0, 7), 1),
        (lambda one: one.cursors_dropped(VbucketData(0, *EMPTY), ()), STREAMS),
        (lambda one: one.cursors_dropped(VbucketData(VBUCKETS, *EMPTY), ()), 0),
    ],
)
def test_only_the_streams_that_are_meant_are_looked_at(
    crowded: DcpConnection, act: Callable[[DcpConnection], object], most_streams: int
) -> None:
    """A flood of answers, or of writes to one vbucket, costs what the streams meant cost."""
    looks.clear()
    act(crowded)
    assert len(looks) <= 2 * most_streams  # is_sending looks at the phase


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.integers(0, VBUCKETS - 1),
            st.none() | st.integers(1, 3),
            st.integers(1, 3),
        ),
        max_size=40,
    )
)
def test_against_a_list(steps: list[tuple[bool, int, int | None, int]]) -> None:
    """Streams come, one in the place of another too, and go, twice as well."""
    bucket = ProducerBucket(ClusterSettings(vbuckets=VBUCKETS))
    register, model, gone = StreamRegister(), list[ActiveStream](), list[ActiveStream]()
    newest: dict[int, ActiveStream] = {}
    for comes, vbucket, stream_id, opaque in steps:
        same = [one for one in model if (one.vbucket, one.stream_id) == (vbucket, stream_id)]
        gone += same
        for one in same:
            model.remove(one)
        if comes:
            model.append(new_stream(bucket, vbucket, stream_id, opaque))
            register.add(model[-1])
            if model[-1].takeover is not None:
                newest[opaque] = model[-1]
        for one in gone:
            register.remove(one)
        assert len(register) == len(model)
        assert set(register) == set(model)
        assert register.find(vbucket, stream_id) is (model[-1] if comes else None)
        wanted = {vbucket, 0}
        assert set(register.of(wanted)) == {one for one in model if one.vbucket in wanted}
        for number, takeover in newest.items():
            assert register.takeover(number) is (takeover if takeover in model else None)
    register.clear()
    assert (list(register), len(register), register.takeover(1)) == ([], 0, None)
