"""Values that leave memory and are read back: what may go, what goes first, what nobody notices."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dcp.errors import ConfigError
from dcp.producer.model.bucket_type import BucketType
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.model.counters import Counters
from dcp.producer.model.versions import Content, Version
from dcp.producer.server.cluster import ProducerCluster
from dcp.producer.vbucket.documents import DocumentError, StoredDocument
from dcp.producer.vbucket.resident_values import EvictedVersion, ResidentValues
from dcp.producer.vbucket.vbucket import Vbucket
from dcp.wire import messages as m
from dcp.wire.vocabulary import Datatype, Opcode, Status
from dcp.wire.xattr import join_xattrs
from tests.producer.conftest import Clock
from tests.producer.one_vbucket import flush
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
Open = Callable[..., ProducerCluster]
NEVER = 3600.0
QUOTA_BYTES = 20_000
KIB = b"x" * 1024


@pytest.fixture
def open_cluster(clock: Clock, tmp_path: Path) -> Iterator[Open]:
    """Clusters of one vbucket with a quota, in memory or in one folder, that serve nobody."""
    with ExitStack() as stack:

        def make(disk: str, **chosen: Any) -> ProducerCluster:
            asked: dict[str, Any] = {"vbuckets": 1, "clock": clock, "flush_seconds": NEVER}
            asked |= {"memory_quota_bytes": QUOTA_BYTES, "record_branches": False} | chosen
            folder = tmp_path / "data" if disk == "folder" else None
            cluster = ProducerCluster(ClusterSettings(data_folder=folder, **asked))
            stack.callback(cluster.stop)
            return cluster

        yield make


on_both_disks = pytest.mark.parametrize("disk", ["memory", "folder"])


def _write(cluster: ProducerCluster, first: int, last: int, **how: Any) -> list[StoredDocument]:
    """Write documents k<first> to k<last> to disk, each with a value of its own."""
    written = [cluster.set(b"k%d" % n, b"%d" % n + KIB, **how) for n in range(first, last + 1)]
    flush(cluster)
    return written


def _evicted(cluster: ProducerCluster) -> set[bytes]:
    versions = cluster.bucket.vbuckets[0].data.newest.keys.versions
    return {version.key for version in versions if isinstance(version, EvictedVersion)}


def _held_bytes(cluster: ProducerCluster) -> int:
    versions = cluster.bucket.vbuckets[0].data.newest.keys.versions
    return sum(v.size_bytes for v in versions if not isinstance(v, EvictedVersion))


@on_both_disks
def test_what_is_too_much_goes_and_is_read_back(open_cluster: Open, disk: str) -> None:
    cluster = open_cluster(disk)
    written = _write(cluster, 1, 100, flags=7)
    assert 0.65 * QUOTA_BYTES < _held_bytes(cluster) <= 0.85 * QUOTA_BYTES
    evicted = _evicted(cluster)
    assert cluster.counters().values_evicted == len(evicted) > 80
    assert [cluster.get(b"k%d" % n) for n in range(1, 101)] == written
    assert cluster.counters().values_read >= len(evicted)
    assert _held_bytes(cluster) <= 0.85 * QUOTA_BYTES


def test_a_value_that_cannot_be_read_is_refused_for_now(
    make_cluster: Open,
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where the disk of a server fails; the connection goes on."""
    cluster = make_cluster(
        vbuckets=1, memory_quota_bytes=QUOTA_BYTES, data_folder=tmp_path / "data"
    )
    _write(cluster, 1, 100)
    key = sorted(_evicted(cluster))[0]
    client = connect(cluster).log_in()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", _broken)
        refusal = client.call(m.KeyOnly(b"\0" + key), Opcode.GET)
        assert refusal.status == Status.ETMPFAIL
        assert b"broken" not in refusal.value
        assert b"server's log" in refusal.value
    assert "vbucket 0: GET is answered ETMPFAIL: [Errno 5] broken: " in caplog.text
    assert "vb_0.log" in caplog.text
    assert client.call(m.KeyOnly(b"\0" + key), Opcode.GET).status == Status.SUCCESS


def _broken(*_: object) -> bytes:
    raise OSError(errno.EIO, "broken")


@on_both_disks
def test_without_a_quota_all_stays(open_cluster: Open, disk: str) -> None:
    cluster = open_cluster(disk, memory_quota_bytes=0)
    _write(cluster, 1, 100)
    assert _evicted(cluster) == set()
    assert (cluster.counters().values_evicted, cluster.counters().values_read) == (0, 0)


@on_both_disks
def test_what_is_used_stays(open_cluster: Open, disk: str) -> None:
    cluster = open_cluster(disk)
    _write(cluster, 1, 5)
    for n in range(6, 60):
        cluster.get(b"k2")
        _write(cluster, n, n)
    assert b"k2" not in _evicted(cluster) > {b"k1", b"k3", b"k4", b"k5"}
    assert cluster.counters().values_read == 0


def test_what_is_not_on_disk_stays(open_cluster: Open) -> None:
    cluster = open_cluster("folder")
    for n in range(100):
        cluster.set(b"k%d" % n, KIB)
    assert (_evicted(cluster), cluster.counters().values_evicted) == (set(), 0)
    flush(cluster)
    assert len(_evicted(cluster)) > 80
    newest = cluster.set(b"k0", b"newest")
    assert cluster.get(b"k0") == newest
    assert cluster.counters().values_read == 0


@on_both_disks
def test_commands_on_an_evicted_document(open_cluster: Open, disk: str, clock: Clock) -> None:
    cluster = open_cluster(disk)
    value = join_xattrs([(b"_sync", b"1"), (b"user", b"2")], KIB)
    with_xattrs = cluster.set(b"xattrs", value, datatype=int(Datatype.XATTR))
    cluster.set(b"due", KIB, expiry=10)
    old = cluster.set(b"old", KIB, flags=9)
    _write(cluster, 1, 50)
    assert _evicted(cluster) > {b"xattrs", b"due", b"old"}

    vbucket, now = cluster.bucket.vbuckets[0], clock.now
    with pytest.raises(DocumentError) as refused:
        vbucket.documents.replace(b"old", b"new", now, cas=old.cas + 1)
    assert refused.value.status is Status.KEY_EEXISTS
    with pytest.raises(DocumentError) as refused:
        vbucket.documents.add(b"old", b"new", now)
    assert refused.value.status is Status.KEY_EEXISTS
    assert cluster.counters().values_read == 0
    touched = cluster.touch(b"old", 1000)
    assert (touched.value, touched.flags, touched.rev) == (KIB, 9, old.rev + 1)
    assert vbucket.documents.replace(b"old", b"new", now, cas=touched.cas).rev == old.rev + 2
    buried = cluster.delete(b"xattrs")
    assert buried.value == join_xattrs([(b"_sync", b"1")], b"")
    assert buried.rev == with_xattrs.rev + 1
    clock.now += 10
    assert cluster.expire_due() == 1
    with pytest.raises(DocumentError, match="no such document"):
        cluster.get(b"due")


@on_both_disks
def test_after_compaction_and_a_crash_values_are_found(open_cluster: Open, disk: str) -> None:
    cluster = open_cluster(disk)
    _write(cluster, 1, 50)
    written = _write(cluster, 1, 50)
    cluster.purge_tombstones(0)
    assert [cluster.get(b"k%d" % n) for n in range(1, 51)] == written
    cluster.set(b"k1", b"lost")
    cluster.crash_restart(0, lost_seqnos=1)
    assert [cluster.get(b"k%d" % n) for n in range(1, 51)] == written
    assert _held_bytes(cluster) <= 0.85 * QUOTA_BYTES


def test_a_restart_loads_no_values(open_cluster: Open) -> None:
    first = open_cluster("folder", memory_quota_bytes=0)
    written = _write(first, 1, 50)
    gone = first.delete(b"k50")
    first.stop()
    again = open_cluster("folder", memory_quota_bytes=1 << 30)
    assert _evicted(again) == {b"k%d" % n for n in range(1, 50)}
    assert again.set(b"k50", b"again").rev == gone.rev + 1
    assert [again.get(b"k%d" % n) for n in range(1, 50)] == written[:-1]
    assert (again.counters().values_read, _evicted(again)) == (49, set())
    again.stop()
    assert _evicted(open_cluster("folder", memory_quota_bytes=0)) == set()


def test_streams_from_memory_do_not_need_them(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, memory_quota_bytes=QUOTA_BYTES, record_branches=False)
    _write(cluster, 1, 100)
    client = connect(cluster).log_in().open_dcp()
    client.request_stream(0)
    items = [b for b in client.messages_to(100) if isinstance(b, m.Mutation)]
    assert [item.value for item in items] == [b"%d" % n + KIB for n in range(1, 101)]
    counters = cluster.counters()
    assert (counters.items_from_disk, counters.disk_scans, counters.values_read) == (0, 0, 0)
    assert counters.values_evicted > 80


def test_an_evicted_version_makes_no_frame() -> None:
    version = Version(0, b"k", Content(b"v", flags=3), seqno=5, rev=2, cas=9)
    evicted = EvictedVersion.of(version)
    assert (evicted.seqno, evicted.rev, evicted.cas, evicted.flags) == (5, 2, 9, 3)
    with pytest.raises(AssertionError, match="seqno 5: found no value"):
        evicted.wire(0)


def test_a_value_larger_than_the_quota_does_not_stay() -> None:
    counters, gone = Counters(), list[Version]()
    values = ResidentValues(1000, counters)
    version = Version(0, b"k", Content(KIB), seqno=1, rev=1, cas=1)
    values.add(version, gone.append)
    assert (gone, values.memory_bytes, counters.values_evicted) == ([version], 0, 1)


@pytest.mark.parametrize(
    "chosen",
    [
        {"memory_quota_bytes": -1},
        {"memory_quota_bytes": 1, "bucket_type": BucketType.EPHEMERAL},
    ],
)
def test_what_cannot_be(chosen: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="memory quota: found"):
        ClusterSettings(**chosen)


_KEYS = st.integers(0, 4)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "set", "get", "get", "delete", "cut", "compact"]), _KEYS),
    max_size=40,
)


@given(steps=_STEPS, quota=st.sampled_from([1, 2500, 5000, 10_000]))
def test_nobody_notices(steps: list[tuple[str, int]], quota: int) -> None:
    counters = Counters()
    settings = ClusterSettings(vbuckets=1, memory_quota_bytes=quota, record_branches=False)
    values = ResidentValues(quota, counters)
    vbucket = Vbucket(0, iter(range(1, 1000)).__next__, settings, values=values)
    states: list[dict[bytes, bytes]] = [{}]
    for number, (step, amount) in enumerate(steps):
        key, held = b"%d" % amount, dict(states[-1])
        match step:
            case "set":
                held[key] = b"%d" % number + KIB
                vbucket.documents.set(key, held[key], now=1.0)
                states.append(held)
            case "delete" if key in held:
                del held[key]
                vbucket.documents.delete(key, now=1.0)
                states.append(held)
            case "get" if key in held:
                assert vbucket.documents.get(key, now=1.0).value == held[key]
            case "compact":
                vbucket.data.persistence.purge(0)
            case "cut":
                vbucket.crash(amount)
                del states[vbucket.data.high_seqno + 1 :]
        vbucket.data.settle()
        assert vbucket.data.high_seqno == len(states) - 1
        resident = [
            v
            for v in vbucket.data.newest.keys.versions
            if v.is_live and not isinstance(v, EvictedVersion)
        ]
        assert values.memory_bytes == sum(version.size_bytes for version in resident)
        assert values.memory_bytes * 100 < quota * 85
    event(f"read {counters.values_read > 0}, evicted {counters.values_evicted > 0}")
    for key, value in states[-1].items():
        assert vbucket.documents.get(key, now=1.0).value == value
