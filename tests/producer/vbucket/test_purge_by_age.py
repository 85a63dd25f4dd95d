"""Old tombstones go with the compaction that runs by rule; what is then asked of those before.

The rule's 8 MiB are 1 byte here: half of a log must be replaced versions or tombstones that go.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.storage import disk_writer
from dcp.wire import messages as m
from dcp.wire.vocabulary import EndReason, Opcode, Status
from tests.producer.conftest import Clock
from tests.producer.one_vbucket import flush
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
Make = Callable[..., ProducerCluster]
HOUR = 3600.0
DAYS = 24 * HOUR
NEVER = 3600.0


@pytest.fixture(autouse=True)
def small_disk_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_writer, "_LEAST_REPLACED_BYTES", 1)


@pytest.fixture(params=["memory", "folder"])
def make(request: pytest.FixtureRequest, make_cluster: Make, tmp_path: Path) -> Make:
    """Clusters of one vbucket, which write to disk only when a test says so."""
    folder = tmp_path / "data" if request.param == "folder" else None

    def made(**chosen: Any) -> ProducerCluster:
        return make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER, **chosen)

    return made


def _fill(cluster: ProducerCluster, clock: Clock) -> None:
    """Seqnos 1 to 5 are k0 to k4, deleted at 6 to 8 (hours 0, 1, 2), 29 is the last of another."""
    _documents(cluster)
    _deletions(cluster, clock)


def _documents(cluster: ProducerCluster) -> None:
    for key in range(5):
        cluster.set(b"k%d" % key, b"{}")


def _deletions(cluster: ProducerCluster, clock: Clock) -> None:
    for key in range(3):
        cluster.delete(b"k%d" % key)
        clock.now += HOUR
    for _ in range(21):
        cluster.set(b"last", b"{}")
    flush(cluster)


def _held(cluster: ProducerCluster) -> dict[bytes, int]:
    return {v.key: v.seqno for v in cluster.bucket.vbuckets[0].data.newest.versions}


@pytest.mark.parametrize(
    ("age", "later", "purge_seqno"),
    [
        (None, 0, 0),  # now it is 3 hours after the first deletion
        (None, 3 * DAYS - 3 * HOUR - 1, 0),
        (None, 3 * DAYS - 3 * HOUR, 6),
        (None, 3 * DAYS - 2 * HOUR, 7),
        (None, 3 * DAYS, 8),
        (3 * HOUR, 0, 6),
        (3 * HOUR + 0.5, 0, 0),
        (3 * HOUR + 0.5, 1, 6),
        (1.5 * HOUR, 0, 7),
        (0.0, 0, 8),
        (float("inf"), 1e6 * DAYS, 0),
    ],
)
def test_when_a_tombstone_goes(
    make: Make, clock: Clock, age: float | None, later: float, purge_seqno: int
) -> None:
    cluster = make(metadata_purge_age_seconds=age)
    _fill(cluster, clock)
    cluster.remove_stale(clock.now + later)
    data = cluster.bucket.vbuckets[0].data
    assert data.disk.size_bytes > 0
    assert not data.persistence.is_mostly_replaced
    assert cluster.purge_seqno(0) == purge_seqno
    left = {b"k0": 6, b"k1": 7, b"k2": 8, b"k3": 4, b"k4": 5, b"last": 29}
    gone = [key for key, seqno in left.items() if 6 <= seqno <= purge_seqno]
    assert _held(cluster) == {key: seqno for key, seqno in left.items() if key not in gone}


def test_a_younger_one_keeps_what_is_above_it(make: Make, clock: Clock) -> None:
    """A clock that went back: a purge takes all up to a seqno, so that one seqno tells of it."""
    cluster = make(metadata_purge_age_seconds=HOUR)
    for key in (b"a", b"b", b"c"):
        cluster.set(key, b"{}")
    cluster.delete(b"a")
    clock.now += HOUR
    cluster.delete(b"b")
    clock.now -= HOUR
    cluster.delete(b"c")
    for _ in range(9):
        cluster.set(b"last", b"{}")
    flush(cluster)
    cluster.remove_stale(clock.now + HOUR)
    assert cluster.purge_seqno(0) == 4
    for _ in range(9):
        cluster.set(b"last", b"{}")
    flush(cluster)
    cluster.remove_stale(clock.now + 2 * HOUR)
    assert cluster.purge_seqno(0) == 6


def test_the_newest_item_stays(make: Make, clock: Clock) -> None:
    cluster = make()
    cluster.set(b"k", b"{}")
    cluster.delete(b"k")
    flush(cluster)
    cluster.remove_stale(clock.now + 100 * DAYS)
    assert (cluster.purge_seqno(0), _held(cluster)) == (0, {b"k": 2})


def test_who_stands_below_is_rolled_back(make: Make, clock: Clock, connect: Connect) -> None:
    cluster = make(metadata_purge_age_seconds=HOUR)
    uuid = cluster.failover_log(0).current_uuid
    client = connect(cluster).log_in().open_dcp()
    client.request_stream(0)
    _documents(cluster)
    client.messages_to(5)
    client.ok(m.DcpControl(b"connection_buffer_size", b"1"), Opcode.DCP_CONTROL)
    _deletions(cluster, clock)
    with cluster.bucket.lock:  # memory is short: the stream is sent back to the disk
        data = cluster.bucket.vbuckets[0].data
        dropped = tuple(name for name in data.checkpoints.cursors if name.startswith("eq_dcpq:"))
        for name in dropped:
            data.checkpoints.remove(name)
        data.checkpoints.expel()
        for connection in cluster.bucket.dcp_connections.values():
            connection.cursors_dropped(data, dropped)
    cluster.remove_stale()
    assert cluster.purge_seqno(0) == 8
    client.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    told = client.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert told[-1] == m.StreamEnd(EndReason.ROLLBACK)
    for start, status in ((0, Status.SUCCESS), (7, Status.ROLLBACK), (8, Status.SUCCESS)):
        other = connect(cluster).log_in().open_dcp(b"other")
        assert other.request_stream(0, start, vb_uuid=uuid).status == status


def test_a_restart_knows_of_it(make_cluster: Make, tmp_path: Path, clock: Clock) -> None:
    chosen = {"vbuckets": 1, "data_folder": tmp_path / "data", "flush_seconds": NEVER}
    cluster = make_cluster(**chosen, metadata_purge_age_seconds=HOUR)
    _fill(cluster, clock)
    cluster.remove_stale()
    held = _held(cluster)
    cluster.stop()
    again = make_cluster(**chosen)
    assert (again.purge_seqno(0), _held(again)) == (8, held)


def test_the_flusher_purges_what_it_passes(
    make_cluster: Make, tmp_path: Path, clock: Clock, connect: Connect
) -> None:
    cluster = make_cluster(
        vbuckets=1,
        data_folder=tmp_path / "data",
        flush_seconds=0.001,
        metadata_purge_age_seconds=HOUR,
    )
    client = connect(cluster).log_in()
    _fill(cluster, clock)
    cluster.set(b"last", b"{}")
    while cluster.purge_seqno(0) < 8:
        cluster.set(b"last", b"{}")
        client.ok(m.Empty(), Opcode.NOOP)


def test_a_disk_log_of_documents_is_left_alone(
    make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than half of a log, or less than 8 MiB, is not worth writing it anew."""
    cluster = make()
    cluster.set(b"large", b"x" * 10_000)
    _fill(cluster, clock)
    assert cluster.remove_stale(clock.now + 100 * DAYS) == 0
    monkeypatch.undo()
    assert cluster.remove_stale(clock.now + 100 * DAYS) == 0
