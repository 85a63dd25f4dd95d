"""Stream requests over real sockets: what each flag does, and ends that nobody asked for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.commands import stream_requests
from dcp.server.commands.dcp_commands import SENT_BY_PRODUCERS
from dcp.server.model.stream_flags import fault_of
from dcp.types import U64_MAX
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.vocabulary import EndReason, Opcode, SnapshotFlag, Status, StreamFlag
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
FIRST_MEMORY = int(SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT)
CACHE = StreamFlag.CACHE_TRANSFER


def _fill(cluster: ProducerCluster, last: int) -> None:
    for number in range(1, last + 1):
        cluster.set(b"k%d" % number, b"1")


@pytest.mark.parametrize(
    ("flags", "is_valid"),
    [
        (0, True),
        (int(sum(set(StreamFlag) - {StreamFlag.NO_VALUE, CACHE})), True),
        (int(StreamFlag.NO_VALUE), False),
        (int(StreamFlag.NO_VALUE | StreamFlag.ACTIVE_VB_ONLY), False),
        (int(CACHE), True),
        (int(CACHE | StreamFlag.TAKEOVER | StreamFlag.ACTIVE_VB_ONLY), True),
        (int(CACHE | StreamFlag.TO_LATEST), False),
        (int(CACHE | StreamFlag.STRICT_VBUUID | StreamFlag.TAKEOVER), False),
        (0x8000, True),
    ],
)
def test_which_flags_may_be_together(flags: int, is_valid: bool) -> None:
    assert (fault_of(flags) is None) is is_valid


def test_invalid_flags_are_refused_before_all_else(
    cluster: ProducerCluster, connect: Connect
) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    refused = dcp.request_stream(0, 5, end=2, flags=int(StreamFlag.NO_VALUE))
    assert refused.status == Status.EINVAL
    assert b"no longer used" in refused.value


@pytest.mark.parametrize(
    ("vbucket", "noop", "start", "flags", "status"),
    [
        (9, True, 0, 0, Status.NOT_MY_VBUCKET),
        (0, False, 0, 0, Status.NOT_SUPPORTED),
        (0, True, 7, 0, Status.ERANGE),
        (0, True, 7, int(StreamFlag.NO_VALUE), Status.EINVAL),
    ],
)
def test_no_json_is_read_of_what_is_refused_anyway(  # noqa: PLR0917
    cluster: ProducerCluster,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    vbucket: int,
    noop: bool,
    start: int,
    flags: int,
    status: Status,
) -> None:
    read: list[bytes] = []

    def reads(value: bytes, *_: object, **__: object) -> None:
        read.append(value)

    monkeypatch.setattr(stream_requests, "parse_filter", reads)
    dcp = connect(cluster).log_in().open_dcp(noop=noop)
    refused = dcp.request_stream(vbucket, start, end=5, flags=flags, value=b"[]")
    assert (refused.status, read) == (status, [])


def test_json_that_is_too_long_is_refused_unread(
    cluster: ProducerCluster, connect: Connect
) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    refused = dcp.request_stream(0, value=b'{"uid":"0","":[' + b"[]," * 22_000 + b"0]}")
    assert refused.status == Status.EINVAL
    assert b"found 66018 bytes, expected at most 65536" in refused.value


def test_a_stream_of_a_cache_is_an_ordinary_one(cluster: ProducerCluster, connect: Connect) -> None:
    """As on a server that has cache transfers turned off."""
    _fill(cluster, 1)
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, flags=int(CACHE)).status == Status.SUCCESS
    assert dcp.message() == m.SnapshotMarker(0, 1, FIRST_MEMORY)


@pytest.mark.parametrize(
    ("rules", "flags", "status"),
    [
        ("document", 0, Status.ROLLBACK),
        ("server", 0, Status.SUCCESS),
        ("server", int(StreamFlag.STRICT_VBUUID), Status.ROLLBACK),
    ],
)
def test_a_strict_uuid_counts_at_the_beginning_too(
    make_cluster: MakeCluster, connect: Connect, rules: str, flags: int, status: Status
) -> None:
    cluster = make_cluster(vbuckets=1, rules=rules)
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, vb_uuid=99, flags=flags).status == status


def test_from_latest_begins_at_the_newest_item(cluster: ProducerCluster, connect: Connect) -> None:
    """Whatever place and branch the request names, but for an unknown branch."""
    _fill(cluster, 3)
    flags = int(StreamFlag.FROM_LATEST)
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, 1, snapshot=(9, 2), flags=flags).status == Status.SUCCESS
    cluster.set(b"new", b"1")
    assert dcp.message() == m.SnapshotMarker(3, 4, FIRST_MEMORY)
    other = connect(cluster).log_in().open_dcp(name=b"other")
    refused = other.request_stream(0, vb_uuid=99, flags=flags)
    assert (refused.status, decode(refused)) == (Status.ROLLBACK, m.RollbackAnswer(0))


def test_who_ignores_purged_tombstones_goes_on(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_items=1)
    _fill(cluster, 3)
    cluster.delete(b"k2")
    cluster.delete(b"k3")
    cluster.set(b"new", b"1")
    assert cluster.purge_tombstones(0) == 2
    uuid = cluster.failover_log(0).current_uuid
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, 3, vb_uuid=uuid).status == Status.ROLLBACK
    flags = int(StreamFlag.IGNORE_PURGED_TOMBSTONES)
    assert dcp.request_stream(0, 3, vb_uuid=uuid, flags=flags).status == Status.SUCCESS
    marker, item = dcp.message(), dcp.message()
    assert isinstance(marker, m.SnapshotMarker)
    assert (marker.end, getattr(item, "by_seqno", None)) == (6, 6)


def test_who_begins_at_0_needs_no_tombstone_wherever_seqnos_begin(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.start_vbucket_at(0, 1000)
    _fill(cluster, 1)
    cluster.delete(b"k1")
    cluster.set(b"new", b"1")
    cluster.purge_tombstones(0)
    cluster.bucket.vbuckets[0].data.checkpoints.expel()
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0)
    assert dcp.message() == m.SnapshotMarker(0, 1003, 6)


def test_an_end_beyond_the_newest_item_is_waited_for(
    cluster: ProducerCluster, connect: Connect
) -> None:
    _fill(cluster, 2)
    dcp = connect(cluster).log_in().open_dcp()
    assert dcp.request_stream(0, end=3).status == Status.SUCCESS
    assert len(dcp.messages_to(2)) == 3
    assert dcp.is_quiet()
    cluster.set(b"third", b"1")
    assert dcp.messages_to(3)[-1] == m.Mutation(b"\0third", b"1", 3, 1, cache_hint=2)
    assert dcp.message() == m.StreamEnd(EndReason.OK)
    assert dcp.request_stream(0, 4, snapshot=(4, 4), end=U64_MAX).status == Status.ROLLBACK


def test_a_disk_that_cannot_be_read_ends_its_stream_only(
    make_cluster: MakeCluster, connect: Connect, tmp_path: Path
) -> None:
    cluster = make_cluster(vbuckets=2, data_folder=tmp_path / "data", flush_seconds=3600.0)
    keys = [next(k for n in range(99) if cluster.vbucket_of(k := b"%d" % n) == v) for v in (0, 1)]
    for key in keys:
        cluster.set(key, b"1")
    for vbucket in cluster.bucket.vbuckets:
        vbucket.data.persistence.flush()
    os.truncate(tmp_path / "data" / "vb_0.log", 10)
    dcp = connect(cluster).log_in().open_dcp()
    disk_only = int(StreamFlag.DISK_ONLY)
    assert dcp.request_stream(0, flags=disk_only).status == Status.SUCCESS
    told = dcp.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert told[-1] == m.StreamEnd(EndReason.BACKFILL_FAILED)
    assert not any(isinstance(body, m.Mutation) for body in told)
    assert dcp.request_stream(1, flags=disk_only).status == Status.SUCCESS
    assert dcp.messages_to(1)[-1] == m.Mutation(b"\0" + keys[1], b"1", 1, 1, cache_hint=2)


SAID: dict[Opcode, m.Body] = {
    Opcode.DCP_ADD_STREAM: m.AddStream(0),
    Opcode.DCP_STREAM_END: m.StreamEnd(EndReason.OK),
    Opcode.DCP_SNAPSHOT_MARKER: m.SnapshotMarker(0, 1, FIRST_MEMORY),
    Opcode.DCP_MUTATION: m.Mutation(b"\0k", b"1", 1, 1),
    Opcode.DCP_DELETION: m.Deletion(b"\0k", 1, 1, b"", 0),
    Opcode.DCP_EXPIRATION: m.Expiration(b"\0k", 1, 1, 5),
    Opcode.DCP_SET_VBUCKET_STATE: m.SetVbucketState(1),
    Opcode.DCP_SYSTEM_EVENT: m.SystemEvent(1, 3, 0, b"s", b"\0" * 12),
    Opcode.DCP_PREPARE: m.Prepare(b"\0k", b"1", 1, 1, 0, 0, 0, 0, 0, 1),
    Opcode.DCP_COMMIT: m.Commit(b"\0k", 1, 2),
    Opcode.DCP_ABORT: m.Abort(b"\0k", 1, 2),
    Opcode.DCP_SEQNO_ADVANCED: m.SeqnoAdvanced(1),
    Opcode.DCP_OSO_SNAPSHOT: m.OsoSnapshot(1),
    Opcode.DCP_CACHE_TRANSFER: m.CacheTransfer(b""),
    Opcode.DCP_CACHE_TRANSFER_END: m.Empty(),
}


def test_all_that_producers_say_is_tried() -> None:
    assert SAID.keys() == SENT_BY_PRODUCERS


@pytest.mark.parametrize("opcode", SAID)
def test_who_speaks_as_a_producer_is_cut_off(
    cluster: ProducerCluster, connect: Connect, opcode: Opcode
) -> None:
    frame = encode(SAID[opcode], opcode)
    plain = connect(cluster).log_in()
    plain.send(frame)
    assert plain.answer().status == Status.EINVAL  # it is on no DCP connection
    dcp = connect(cluster).log_in().open_dcp()
    dcp.send(frame)
    assert dcp.is_closed()
