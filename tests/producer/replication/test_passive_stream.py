"""Passive streams fed by hand: a table of what fits and what is refused, and a naive model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import RemoteProtocolError
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.manifest import FIRST
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.storage.stored_items import STORED_FLAVOUR
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import END_OF_TIME, FailoverEntry, SnapshotRange
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.system_event import CollectionBegun
from dcp.wire.vocabulary import Opcode, Status, StreamFlag, VbucketState
from tests.producer.fed_replica import LOG, FedReplica

MEMORY, DISK, ACK = 0x05, 0x06, 0x08


def _replica() -> Replica:
    numbers = count(1)
    vbucket = Vbucket(0, lambda: next(numbers), ClusterSettings(vbuckets=1))
    return Replica(vbucket, lambda: FIRST)


def _message(body: m.Body, opcode: int, vbucket: int = 0) -> bytes:
    return encode(body, opcode, vbucket=vbucket, opaque=7).to_bytes()


def _marker(start: int, end: int, flags: int = MEMORY, purge_seqno: int | None = None) -> bytes:
    body = m.SnapshotMarker(start, end, flags)
    if purge_seqno is not None:
        body = m.SnapshotMarker(start, end, flags, 2, end, 0, None, purge_seqno, 0)
    return _message(body, Opcode.DCP_SNAPSHOT_MARKER)


def _version(seqno: int, key: bytes = b"k", content: Content | None = None) -> Version:
    found = Content(b"v%d" % seqno) if content is None else content
    return Version(0, key, found, seqno=seqno, rev=seqno, cas=seqno << 16)


def _item(seqno: int, key: bytes = b"k", content: Content | None = None) -> bytes:
    return b"".join(_version(seqno, key, content).wire(STORED_FLAVOUR))


def _advanced(seqno: int) -> bytes:
    return _message(m.SeqnoAdvanced(seqno), Opcode.DCP_SEQNO_ADVANCED)


def _state(state: VbucketState) -> bytes:
    return _message(m.SetVbucketState(state), Opcode.DCP_SET_VBUCKET_STATE)


END = _message(m.StreamEnd(2), Opcode.DCP_STREAM_END)


@pytest.mark.parametrize(
    "messages",
    [
        [_item(1)],
        [_marker(0, 3), _item(4)],
        [_marker(0, 3), _item(2), _item(2)],
        [_marker(0, 3), _item(2), _item(1)],
        [_marker(2, 3), _item(1)],
        [_marker(0, 3), _item(3), _item(4)],
        [_marker(0, 3), _item(3), _marker(1, 3)],
        [_marker(0, 3), _item(3), _marker(1, 2)],
        [_marker(0, 3), _item(2), _advanced(1)],
        [_marker(0, 3), _item(2), _advanced(4)],
        [_marker(0, 3), _item(3), _advanced(2)],
        [END, _marker(0, 3)],
        [_state(VbucketState.PENDING)],
        [_message(m.OsoSnapshot(1), Opcode.DCP_OSO_SNAPSHOT)],
        [_message(m.SnapshotMarker(0, 3, 1), Opcode.DCP_SNAPSHOT_MARKER, 1)],
        [_marker(3, 0)],
        [_marker(0, 3), _message(m.Deletion(b"\0k", 2, 2, nmeta=0), Opcode.DCP_DELETION)],
        [_marker(0, 3), _message(m.Commit(b"\0k", 1, 2), Opcode.DCP_COMMIT)],
    ],
)
def test_what_does_not_fit(messages: Sequence[bytes]) -> None:
    """The last message is a violation, and nothing changes by it."""
    replica = _replica()
    fed = FedReplica(replica)
    fed.feed(*messages[:-1])
    before = (replica.high_seqno, replica.complete_seqno, replica.snapshot, fed.stream.is_over)
    with pytest.raises(RemoteProtocolError):
        fed.feed(messages[-1])
    assert (
        replica.high_seqno,
        replica.complete_seqno,
        replica.snapshot,
        fed.stream.is_over,
    ) == before


@pytest.mark.parametrize(
    ("messages", "high", "consistent", "is_over"),
    [
        ([_marker(0, 3)], 0, 0, False),
        ([_marker(0, 3), _item(2)], 2, 0, False),
        ([_marker(0, 3), _item(2), _item(3)], 3, 3, False),
        ([_marker(0, 3), _item(2), _advanced(3)], 3, 3, False),
        ([_marker(0, 3), _item(2), _advanced(2)], 2, 0, False),
        ([_marker(0, 9), _item(2), _advanced(3)], 2, 0, False),
        ([_marker(0, 9), _advanced(3)], 0, 0, False),
        ([_marker(0, 9), _advanced(9)], 9, 9, False),
        ([_marker(0, 3), _item(3), _advanced(3)], 3, 3, False),
        ([_marker(0, 3), _item(3), _advanced(5)], 5, 5, False),
        ([_marker(0, 3), _item(2), _marker(0, 9)], 2, 0, False),
        ([_marker(0, 3), _item(2), _marker(0, 9), _item(9)], 9, 9, False),
        ([_marker(0, 3), _item(3), _marker(6, 9), _item(7)], 7, 3, False),
        ([_marker(0, 3), _item(2), END], 2, 0, True),
    ],
)
def test_what_fits(messages: Sequence[bytes], high: int, consistent: int, is_over: bool) -> None:
    replica = _replica()
    fed = FedReplica(replica)
    for message in messages:
        assert fed.feed(message) == []
        replica.store_received()
    found = (replica.high_seqno, replica.complete_seqno, fed.stream.is_over)
    assert found == (high, consistent, is_over)
    assert replica.vbucket.data.disk.persisted_seqno == high


def test_requests() -> None:
    """What is asked for: all, then what comes next, or the rest of a snapshot."""
    replica = _replica()
    active_only = int(StreamFlag.ACTIVE_VB_ONLY)
    first = FedReplica(replica)
    assert first.asked == [m.StreamRequest(active_only, 0, END_OF_TIME, 0, 0, 0)]
    assert replica.vbucket.failover_log == LOG
    first.feed(_marker(0, 3), _item(3))
    again = FedReplica(replica)
    assert again.asked == [m.StreamRequest(active_only, 3, END_OF_TIME, 0xABC, 3, 3)]
    assert (first.stream.is_in_charge, again.stream.is_in_charge) == (False, True)
    again.feed(_marker(4, 9), _item(5))
    last = FedReplica(replica, takes_over=True)
    takeover = active_only | StreamFlag.TAKEOVER
    assert last.asked == [m.StreamRequest(takeover, 5, END_OF_TIME, 0xABC, 3, 9)]
    again.feed(_item(6))  # it is not in charge any more
    assert replica.high_seqno == 5


def test_a_refused_request_ends_the_stream() -> None:
    fed = FedReplica(_replica(), None)
    assert fed.answer(Status.NOT_MY_VBUCKET, m.Refusal(b"")).is_over
    assert not fed.streams.by_vbucket


@pytest.mark.parametrize("ends_are_told", [True, False])
def test_a_stream_that_was_closed_is_asked_for_when_it_has_ended(ends_are_told: bool) -> None:
    """A vbucket has one stream on a connection: the end of the old one is not the new one's."""
    replica, other = _replica(), _replica()
    fed = FedReplica(replica, ends_are_told=ends_are_told)
    fed.streams.follow({}, 0.0)
    fed.streams.follow({0: other}, 0.0)
    assert not fed.streams.by_vbucket
    assert not fed.stream.is_in_charge
    fed.feed()  # CLOSE_STREAM is answered
    if ends_are_told:
        assert not fed.streams.by_vbucket
        fed.feed(_marker(0, 3), _item(2), END)
    assert fed.streams.by_vbucket[0].replica is other
    assert (replica.high_seqno, other.high_seqno, len(fed.asked)) == (0, 0, 2)


def test_the_end_of_a_closed_stream_that_comes_with_the_answer_is_not_the_next_one_s() -> None:
    """The next stream is asked for between the two; it would be taken for ended, and stay so."""
    replica = _replica()
    fed = FedReplica(replica)
    fed.streams.follow({}, 0.0)
    fed.streams.follow({0: replica}, 0.0)
    fed.answer_close_and_end(END)
    fed.stream = fed.streams.by_vbucket[0]
    fed.feed()
    fed.answer(Status.SUCCESS, m.FailoverLogAnswer(LOG.entries))
    fed.feed(_marker(0, 3), _item(3))
    assert replica.high_seqno == 3


def test_no_stream_is_asked_for_without_room_and_none_is_forgotten() -> None:
    """Whether it is opened, or opened again as it was closed, or as it was told to go back."""
    replica = _replica()
    fed = FedReplica(replica)
    fed.feed(_marker(0, 3), _item(3))
    fed.streams.follow({}, 0.0)
    fed.streams.follow({0: replica}, 0.0)
    fed.feed()
    fed.has_room = False
    fed.feed(END)
    assert (fed.streams.by_vbucket, len(fed.asked)) == ({}, 1)
    assert fed.streams.retry_at == pytest.approx(0.02)
    fed.streams.tick(0.02)
    assert (fed.streams.by_vbucket, len(fed.asked)) == ({}, 1)
    assert fed.streams.retry_at == pytest.approx(0.06)
    fed.has_room = True
    fed.streams.tick(0.06)
    fed.stream = fed.streams.by_vbucket[0]
    fed.has_room = False
    assert fed.answer(Status.ROLLBACK, m.RollbackAnswer(0)).is_over
    assert (replica.high_seqno, len(fed.asked)) == (0, 2)
    fed.has_room = True
    fed.streams.tick(1.0)
    fed.feed()
    assert [each.start for each in fed.asked] == [0, 3, 0]
    assert fed.streams.retry_at is None


def test_a_failover_log_that_cannot_be_is_asked_for_again_after_a_wait() -> None:
    """Though the answer to the CLOSE_STREAM of what was accepted comes at once."""
    fed = FedReplica(_replica(), None)
    fed.answer(Status.SUCCESS, m.FailoverLogAnswer((FailoverEntry(0, 0),)))
    fed.feed()
    fed.feed(END)
    assert (fed.streams.by_vbucket, len(fed.asked)) == ({}, 1)
    fed.streams.tick(0.02)
    fed.feed()
    assert len(fed.asked) == 2


def test_nothing_lies_before_the_beginning() -> None:
    fed = FedReplica(_replica(), None)
    with pytest.raises(RemoteProtocolError, match="ROLLBACK as the response to a stream request"):
        fed.answer(Status.ROLLBACK, m.RollbackAnswer(0))


@pytest.mark.parametrize(
    ("rollback_seqno", "left"), [(9, 0), (8, 6), (6, 6), (5, 3), (3, 3), (2, 0), (0, 0)]
)
def test_rolling_back_to_a_whole_snapshot(rollback_seqno: int, left: int) -> None:
    """And to nothing, where it was told to go back and could not."""
    replica = _replica()
    fed = FedReplica(replica)
    for end in (3, 6, 9):
        fed.feed(_marker(end - 2, end))
        for seqno in range(end - 2, end + 1):
            fed.feed(_item(seqno, b"k%d" % (seqno % 2)))
            replica.store_received()
    again = FedReplica(replica, None)
    again.answer(Status.ROLLBACK, m.RollbackAnswer(rollback_seqno))
    assert again.stream.take_rollback()
    assert [each.start for each in again.asked] == [9, left]
    assert (replica.high_seqno, replica.complete_seqno) == (left, left)
    newest = {version.key: version.seqno for version in replica.vbucket.data.newest.versions}
    expected = {b"k%d" % (seqno % 2): seqno for seqno in range(1, left + 1)}
    assert newest == expected


def test_a_takeover_is_answered() -> None:
    """Markers when their end is there, states at once."""
    fed = FedReplica(_replica(), takes_over=True)
    assert fed.feed(_marker(0, 2, MEMORY | ACK)) == []
    assert fed.feed(_item(1)) == []
    assert fed.feed(_item(2)) == [Opcode.DCP_SNAPSHOT_MARKER]
    for state in (VbucketState.PENDING, VbucketState.ACTIVE):
        assert fed.feed(_state(state)) == [Opcode.DCP_SET_VBUCKET_STATE]
        assert fed.stream.state == state


def test_the_first_disk_snapshot() -> None:
    replica = _replica()
    fed = FedReplica(replica)
    fed.feed(_marker(0, 9, DISK, purge_seqno=4))
    waits = [replica.awaits_first_disk_snapshot]
    assert replica.vbucket.data.disk.purge_seqno == 4
    fed.feed(_item(5))
    replica.store_received()
    assert replica.vbucket.data.checkpoints.memory_bytes == 0  # what is on disk need not stay
    assert replica.snapshot == SnapshotRange(0, 9)
    waits.append(replica.awaits_first_disk_snapshot)
    fed.feed(_item(9, b"l"))
    waits.append(replica.awaits_first_disk_snapshot)
    fed.feed(_marker(10, 12, DISK))
    waits.append(replica.awaits_first_disk_snapshot)
    assert waits == [True, True, False, False]


@pytest.mark.parametrize("received", [0, 5])
def test_the_first_disk_snapshot_goes_on_from_memory_and_ends_earlier(received: int) -> None:
    """The active failed over and lost writes: nothing with the old end's seqno may ever come."""
    replica = _replica()
    fed = FedReplica(replica)
    fed.feed(_marker(0, 31, DISK))
    if received:
        fed.feed(_item(received))
    again = FedReplica(replica)
    again.feed(_marker(0, 8, MEMORY))
    assert replica.awaits_first_disk_snapshot
    again.feed(_item(8, b"l"))
    assert not replica.awaits_first_disk_snapshot


def test_every_kind_of_item_is_the_same_in_the_replica() -> None:
    xattrs = b"\0\0\0\x0a\0\0\0\x06_s\0{}\0body"
    begun = CollectionBegun(1, 0, 8, b"c", None)
    versions = [
        _version(1, content=Content(b"{}", 1, flags=0xFFFF, expiry=1_800_000_000)),
        _version(2, content=Content(b"", 0, opcode=Opcode.DCP_DELETION, delete_time=5)),
        _version(3, content=Content(b"", 0, opcode=Opcode.DCP_EXPIRATION, delete_time=6)),
        _version(4, b"x", Content(xattrs, 4)),
        _version(5, b"p", Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(0, 1))),
        _version(6, b"p", Content(opcode=Opcode.DCP_ABORT, sync=SyncWrite(5))),
        Version.of_event(0, begun, seqno=7),
    ]
    replica = _replica()
    fed = FedReplica(replica)
    for version in versions:
        frame = b"".join(version.wire(STORED_FLAVOUR))
        fed.feed(_marker(version.seqno, version.seqno))
        fed.feed(frame)
        replica.store_received()
        with replica.vbucket.data.disk.scan(version.seqno - 1) as scan:
            found = scan.read(1 << 20)
        assert found is not None
        assert bytes(found.data) == frame
    assert replica.vbucket.documents.collections.manifest.collections.keys() == {0, 8}


@dataclass
class NaiveActive:
    """Keys by seqno; a snapshot shows the newest seqno of each key in its range."""

    keys: list[bytes] = field(default_factory=list)

    def state(self, seqno: int) -> dict[bytes, int]:
        return {key: at for at, key in enumerate(self.keys[:seqno], 1)}

    def snapshot(self, after: int, end: int) -> list[int]:
        return sorted(at for at in self.state(end).values() if at > after)


@given(st.data())
def test_a_replica_is_what_a_naive_model_says(data: st.DataObject) -> None:
    """Snapshots in parts, broken off and merged with the next, wrong messages, rollbacks."""

    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    size = draw(1, 40)
    active = NaiveActive([b"k%d" % draw(0, 5) for _ in range(size)])
    replica = _replica()
    fed = FedReplica(replica)
    ends, received = [0], 0  # whole snapshots that the replica has, and its newest seqno
    told = 0  # an active shows no older state than the one of which it sent a part
    for _ in range(draw(1, 12)):
        if received == size:
            break
        end = told = draw(max(received + 1, told), size)
        fed.feed(_marker(received + 1, end, DISK if draw(0, 1) else MEMORY))
        items = active.snapshot(received, end)
        sent = items[: draw(1, len(items))]
        for seqno in sent:
            fed.feed(_item(seqno, active.keys[seqno - 1]))
            if draw(0, 3) == 0:
                replica.store_received()
            if draw(0, 5) == 0:
                bad = _item(draw(1, seqno))
                with pytest.raises(RemoteProtocolError):
                    fed.feed(bad)
                fed = FedReplica(replica)  # a connection with a violation is over
                if seqno < end:
                    fed.feed(_marker(seqno + 1, end))
        received = sent[-1]
        if received == end:
            ends.append(end)
        else:
            fed = FedReplica(replica)
        replica.store_received()
        if draw(0, 3) == 0:
            asked = draw(0, received)
            whole = max(each for each in ends if each <= asked)
            expected = whole if whole < received else 0
            fed = FedReplica(replica, None)
            fed.answer(Status.ROLLBACK, m.RollbackAnswer(asked))
            fed.answer(Status.SUCCESS, m.FailoverLogAnswer(LOG.entries))
            ends = [each for each in ends if each <= expected]
            received = told = expected
        assert (replica.high_seqno, replica.complete_seqno) == (received, ends[-1])
        newest = {version.key: version.seqno for version in replica.vbucket.data.newest.versions}
        if received == ends[-1]:
            assert newest == active.state(received)
        assert all(active.keys[seqno - 1] == key for key, seqno in newest.items())
    replica.drop_part()
    newest = {version.key: version.seqno for version in replica.vbucket.data.newest.versions}
    assert newest == active.state(ends[-1])
    assert replica.high_seqno == ends[-1]
