"""A bucket in a folder: what is there after a stop in good order, and whose folder it is.

With ``flush_seconds=3600`` nothing goes to disk but what a test writes there.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import ConfigError, DcplakeError, LocalProtocolError, SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.storage.disk_batch import DiskFormatError
from dcp.server.storage.disk_file import Data, OsFile
from dcp.tls_settings import TlsSettings
from dcp.types import U64_MAX, FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.vocabulary import Status, VbucketState
from tests.producer.conftest import Clock
from tests.producer.kept_clusters import NEVER, all_told, crash_of, flush_all, write
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
Open = Callable[..., ProducerCluster]


def _all_kinds(cluster: ProducerCluster, clock: Clock) -> None:
    """Do of everything a little, on four vbuckets of two nodes."""
    cluster.start_vbucket_at(3, 1 << 63, cas=(1 << 63) + 1)
    for n in range(40):
        cluster.set(b"k%d" % n, b'{"n": %d}' % n, flags=n)
    cluster.create_scope("s")
    cluster.create_collection("s", "kept", max_ttl=500)
    for name in ("dropped", "flushed"):
        cluster.create_collection("s", name)
    for n in range(20):
        for name in ("kept", "dropped", "flushed"):
            cluster.set(b"c%d" % n, b"[]", collection=f"s.{name}")
    cluster.drop_collection("s", "dropped")
    cluster.flush_collection("s", "flushed")
    for n in range(0, 40, 3):
        cluster.delete(b"k%d" % n)
    cluster.set(b"short", b"1", expiry=10)
    cluster.set(b"long", b"1", expiry=1000)
    clock.now += 20
    assert cluster.expire_due() == 1
    cluster.move_vbucket(3, 0)
    flush_all(cluster)
    cluster.crash_restart(0)
    cluster.set_vbucket_state(1, VbucketState.REPLICA)
    flush_all(cluster)
    assert cluster.purge_tombstones(0) > 0


def test_after_a_stop_all_is_as_before(open_cluster: Open, clock: Clock, folder: Path) -> None:
    first = open_cluster(folder, vbuckets=4, nodes=2)
    _all_kinds(first, clock)
    rev, clocks = first.bucket.map.rev, [v.documents.clock.last for v in first.bucket.vbuckets]
    first.stop()
    told = all_told(first)

    again = open_cluster(folder, vbuckets=4, nodes=2)
    assert all_told(again) == told
    assert again.bucket.map.rev > rev
    assert again.bucket.map.owners == (0, 0, 1, 0)
    assert [v.documents.clock.last for v in again.bucket.vbuckets] == clocks
    long = again.vbucket_of(b"long")
    if again.bucket.vbuckets[long].state is VbucketState.ACTIVE:
        clock.now += 1000
        assert again.expire_due() >= 1
    given = again.bucket.manifest.given_collection_ids
    assert again.create_collection("s", "new") not in given


def test_a_stop_and_a_start_of_an_empty_bucket_change_nothing(
    open_cluster: Open, folder: Path
) -> None:
    first = open_cluster(folder, vbuckets=8)
    first.stop()
    first.stop()
    assert all_told(open_cluster(folder, vbuckets=8)) == all_told(first)
    assert sorted(path.name for path in folder.iterdir()) == ["bucket.json", "lock"]


def test_rev_and_cas_go_on_growing(open_cluster: Open, clock: Clock, folder: Path) -> None:
    first = open_cluster(folder)
    first.set(b"k", b"1")
    gone = first.delete(b"k")
    first.stop()
    clock.now -= 10_000
    assert (found := open_cluster(folder).set(b"k", b"2")).cas > gone.cas
    assert (found.rev, found.seqno) == (3, 3)


def test_after_a_stop_a_stream_resumes(
    make_cluster: Open, open_cluster: Open, connect: Connect, folder: Path
) -> None:
    first = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    write(first, b"a", b"b", b"c")
    uuid = first.failover_log(0).current_uuid
    first.stop()
    again = open_cluster(folder)
    again.start()
    client = connect(again).log_in().open_dcp()
    answer = client.request_stream(0, 2, vb_uuid=uuid, snapshot=(0, 3))
    assert answer.status == Status.SUCCESS
    assert [b.key for b in client.messages_to(3) if isinstance(b, m.Mutation)] == [b"\0c"]


def test_a_folder_with_uuids_of_64_bits_goes_on(
    make_cluster: Open,
    open_cluster: Open,
    connect: Connect,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Earlier releases gave such."""
    with monkeypatch.context() as earlier:
        earlier.setattr("dcp.server.model.failover_log.LARGEST_NEW_UUID", U64_MAX)
        first = make_cluster(vbuckets=1, data_folder=folder, flush_seconds=NEVER)
    write(first, b"a", b"b")
    large = first.failover_log(0).current_uuid
    assert large > 1 << 53
    flush_all(first)
    crashed = open_cluster(crash_of(first, folder, "crashed"))
    assert [entry.vb_uuid for entry in crashed.failover_log(0).entries[1:]] == [large]
    assert 0 < crashed.failover_log(0).current_uuid < 1 << 48
    crashed.start()
    client = connect(crashed).log_in().open_dcp()
    answer = client.request_stream(0, 1, vb_uuid=large, snapshot=(0, 2))
    assert answer.status == Status.SUCCESS
    first.stop()
    assert open_cluster(folder).failover_log(0).current_uuid == large


def test_each_batch_of_writes_stays_a_state_to_go_back_to(open_cluster: Open, folder: Path) -> None:
    """Though all of them are one batch on disk; the middle of one is no state that there was."""
    first = open_cluster(folder)
    write(first, b"a", b"b")
    write(first, b"a", b"c", b"d")
    write(first, b"b")
    first.stop()
    ends = [0, 0, 2, 2, 2, 5, 6]
    again = open_cluster(folder)
    data = again.bucket.vbuckets[0].data
    assert [data.disk.batch_end_at(seqno) for seqno in range(7)] == ends
    again.crash_restart(0, lost_seqnos=2)
    assert again.high_seqno(0) == 2
    assert {v.key: v.seqno for v in data.newest.versions} == {b"a": 1, b"b": 2}


def test_a_vbucket_saves_what_changed(open_cluster: Open, folder: Path) -> None:
    """Not all manifests that it stood at with each batch, nor for ever."""
    cluster = open_cluster(folder)
    data = cluster.bucket.vbuckets[0].data
    write(cluster, b"k")
    for number in range(50):
        cluster.create_collection("", f"c{number}")
    for number in range(50):
        cluster.set(b"k", b"1", collection=f"_default.c{number}")
        cluster.drop_collection("", f"c{number}")
    flush_all(cluster)
    many = len(data.disk.saved_state)
    before = data.disk.size_bytes
    write(cluster, b"k")
    flush_all(cluster)
    assert data.disk.size_bytes < before + 500 < before + many
    crashed = open_cluster(crash_of(cluster, folder, "crashed"))
    collections = crashed.bucket.vbuckets[0].documents.collections
    assert collections.high_seqnos == cluster.bucket.vbuckets[0].documents.collections.high_seqnos
    assert set(collections.high_seqnos) == {0}
    cluster.purge_tombstones(0)
    write(cluster, b"k")
    flush_all(cluster)
    assert len(data.disk.saved_state) < many // 4
    assert len(collections.steps) == 100
    assert len(cluster.bucket.vbuckets[0].documents.collections.steps) == 1
    cluster.stop()
    assert all_told(open_cluster(folder)) == all_told(cluster)


def test_a_change_of_the_manifest_is_saved_once(
    open_cluster: Open, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = open_cluster(folder, vbuckets=8)
    saved, replace = [], OsFile.replace

    def watched(file: OsFile, parts: Iterable[Data]) -> None:
        saved.append(str(file))
        replace(file, parts)

    monkeypatch.setattr(OsFile, "replace", watched)
    cluster.create_collection("", "a")
    assert saved == [str(folder / "bucket.json")]


# --- whose folder it is


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"bucket": "other"}, "bucket: found 'default', expected 'other'"),
        ({"vbuckets": 2}, "vbuckets: found 1, expected 2"),
        ({"nodes": 2}, "nodes: found 1, expected 2"),
    ],
)
def test_a_folder_of_another_bucket(
    open_cluster: Open, folder: Path, chosen: dict[str, Any], message: str
) -> None:
    open_cluster(folder).stop()
    for _ in range(2):  # the lock is let go of
        with pytest.raises(ConfigError, match=message):
            open_cluster(folder, **chosen)
    open_cluster(folder)


def _change(**changes: object) -> Callable[[Path], None]:
    """Give bucket.json other fields; without those of which the value is ``...``."""

    def damage(folder: Path) -> None:
        path = folder / "bucket.json"
        tree = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({name: v for name, v in tree.items() if v is not ...}))

    return damage


def _write_record(text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "bucket.json").write_text(text)

    return damage


def _change_log(folder: Path) -> None:
    shutil.copy(folder / "vb_0.log", folder / "vb_1.log")


def _forget_bucket(folder: Path) -> None:
    (folder / "bucket.json").unlink()


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (_change(version=7), ConfigError, "format version: found 7, expected 5"),
        (_change(version=...), ConfigError, "format version: found None, expected 5"),
        (
            _write_record("{"),
            ConfigError,
            r"bucket\.json: found no JSON \(.*\), expected an object",
        ),
        (_write_record("\0\0"), ConfigError, r"bucket\.json: found no JSON"),
        (_write_record("[1]"), ConfigError, r"found \[1\], expected a JSON object"),
        (_change(owner=[0, 0]), ConfigError, "fields: found .*'owner'.*, expected .*'bucket'"),
        (_change(uuid=...), ConfigError, "fields: found .*, expected .*'uuid'"),
        (_change(owners="00"), ConfigError, "owners: found '00', expected a list of numbers"),
        (_change(owners=[0]), ConfigError, "owners: found 1, expected 2"),
        (_change(owners=[0, 1]), ConfigError, "owners: found node 1, expected less than 1"),
        (
            _change(replicas=[[], [-2]]),
            ConfigError,
            r"replicas: found .*, expected a list of lists",
        ),
        (_change(replicas=[[]]), ConfigError, "replicas: found 1, expected 2"),
        (_change(replicas=[[], [1]]), ConfigError, "replicas: found node 1, expected less than 1"),
        (_change(members=[1]), ConfigError, r"members: found \[1\], expected a list of true"),
        (_change(map_rev=True), ConfigError, "map_rev: found True, expected a number"),
        (_change(first_uuids=[1, 1 << 64]), ConfigError, "first_uuids: found .*a list of numbers"),
        (_change(manifest=1), ConfigError, r"manifest: found number 1, expected one of \[0\]"),
        (_change(manifests=[{}]), ConfigError, r"manifests: found \[\{\}\], expected a list of m"),
        (_change(ended_at=[1]), ConfigError, "ended_at: found 1, expected 2"),
        (_change_log, DiskFormatError, "found vbucket 0, expected 1"),
        (_forget_bucket, ConfigError, "found disk logs of vbuckets without a bucket.json"),
    ],
)
def test_a_folder_that_cannot_be_read(
    open_cluster: Open,
    folder: Path,
    damage: Callable[[Path], None],
    kind: type[DcplakeError],
    message: str,
) -> None:
    first = open_cluster(folder, vbuckets=2)
    first.set(next(k for k in (b"a", b"b", b"c", b"d") if first.vbucket_of(k) == 0), b"1")
    first.stop()
    damage(folder)
    for _ in range(2):
        with pytest.raises(kind, match=message):
            open_cluster(folder, vbuckets=2)


def test_a_folder_serves_one_producer_at_a_time(open_cluster: Open, folder: Path) -> None:
    first = open_cluster(folder)
    with pytest.raises(SourceError, match=r"another process serves from it \(\{\"pid\": "):
        open_cluster(folder)
    first.stop()
    open_cluster(folder)


def test_what_a_cluster_in_a_folder_does_not_do(open_cluster: Open, folder: Path) -> None:
    cluster = open_cluster(folder)
    log = FailoverLog((FailoverEntry(1, 0),))
    with pytest.raises(LocalProtocolError, match="found one in a data folder"):
        cluster.set_up_vbucket(0, VbucketFacts(log, 0))
    cluster.stop()
    with pytest.raises(LocalProtocolError, match="given up its data folder"):
        cluster.start()


def test_a_folder_that_cannot_be_made(open_cluster: Open, folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(ConfigError, match=r"data_folder \(--data\) .*: found a file, expected a"):
        open_cluster(folder)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ({"users": {"a": "\x01secret"}}, r"producer users: password of 'a': found characters"),
        ({"tls": TlsSettings(cert_file="/nowhere")}, r"producer tls \(--tls-cert, .*'/nowhere'"),
    ],
)
def test_a_refused_setting_leaves_no_folder(
    open_cluster: Open, folder: Path, refused: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        open_cluster(folder, **refused)
    assert "secret" not in str(caught.value)
    assert not folder.exists()
