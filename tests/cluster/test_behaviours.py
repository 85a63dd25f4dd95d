"""The behaviours of a cluster that dcplake relies on: the embedded producer's, and any other's.

docs/howto/testing-consumers.md says how to run this against a cluster of your own.
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep
from types import SimpleNamespace

import pytest

from dcp.cli.main import main
from dcp.client.connection import NodeConnection
from dcp.client.probe import ask_nodes, probe_cluster
from dcp.errors import AuthenticationError, BucketError
from dcp.lake.receive.source_access import query_cluster
from dcp.protocol.credentials import Secret
from dcp.protocol.events import (
    FailoverLogReceived,
    Items,
    RollbackOrdered,
    SnapshotStarted,
    StreamOpened,
    SystemEventReceived,
)
from dcp.protocol.negotiation import CHANGE_STREAMS, refused_features
from dcp.protocol.position import Position
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.snappy import deflate, inflate
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
)
from dcp.wire.vocabulary import Datatype, Opcode, OpenFlag, SnapshotFlag, Status
from dcp.wire.xattr import split_xattrs
from tests.client.drained import Drained, wait_for
from tests.cluster.bucket import Bucket, holds

MEBIBYTE = 1024 * 1024
TINY_BYTES = 1024
"""Of a window: less than most messages here."""


NUMBERS = ("opcode", "datatype", "cas", "rev", "collection_id", "expiry", "delete_time")
ENCRYPTED_TOO = pytest.mark.parametrize("bucket", ["as named", "encrypted"], indirect=True)


def rows_of(drained: Drained, key: bytes) -> list[SimpleNamespace]:
    """Return all changes of a key, in order: their columns, and in ``parts`` xattrs and body."""
    found = []
    for columns in (event.columns for event in drained.events if isinstance(event, Items)):
        for row in (row for row, of in enumerate(columns.key.to_pylist()) if of == key):
            cells = {name: int(getattr(columns, name)[row]) for name in NUMBERS}
            value = columns.value[row].as_py()
            has_xattrs = cells["datatype"] & Datatype.XATTR
            xattrs, body = split_xattrs(value) if has_xattrs else ((), value)
            found.append(SimpleNamespace(**cells, value=value, parts=(dict(xattrs), body)))
    return found


def comes(key: bytes, xattrs: dict[bytes, bytes], body: bytes) -> Callable[[Drained], bool]:
    """Return the condition that this is what a key was last seen with."""
    return lambda drained: [row.parts for row in rows_of(drained, key)[-1:]] == [(xattrs, body)]


@ENCRYPTED_TOO
def test_a_document_is_followed_until_it_is_deleted(bucket: Bucket) -> None:
    key = bucket.key("one")
    vbucket = bucket.vbucket(key)
    drained = Drained()
    with bucket.streaming(bucket.now(key)) as consumer:
        first = bucket.set(key, b'{"n": 1}')
        drained.run(consumer, holds(vbucket, key, b'{"n": 1}'))
        second = bucket.set(key, b"no JSON")
        drained.run(consumer, holds(vbucket, key, b"no JSON"))
        bucket.delete(key)
        drained.run(consumer, holds(vbucket, key, None))
    created, replaced, deleted = rows_of(drained, key)
    assert [(row.opcode, row.datatype, row.rev) for row in (created, replaced, deleted)] == [
        (Opcode.DCP_MUTATION, Datatype.JSON, created.rev),
        (Opcode.DCP_MUTATION, Datatype.RAW, created.rev + 1),
        (Opcode.DCP_DELETION, Datatype.RAW, created.rev + 2),
    ]
    assert (created.cas, replaced.cas) == (first, second)


def test_a_document_that_expires_is_told_as_expired(bucket: Bucket) -> None:
    key = bucket.key("short-lived")
    vbucket = bucket.vbucket(key)
    drained = Drained()
    with bucket.streaming(bucket.now(key)) as consumer:
        bucket.set(key, b"{}", expiry=1)
        drained.run(consumer, holds(vbucket, key, b"{}"))
        while bucket.is_there(key):  # asked for when it is due, it is gone at once
            sleep(0.2)
        drained.run(consumer, holds(vbucket, key, None))
    stored, expired = rows_of(drained, key)
    assert (stored.opcode, expired.opcode) == (Opcode.DCP_MUTATION, Opcode.DCP_EXPIRATION)
    assert 0 < stored.expiry <= expired.delete_time, "seconds since 1970, by the node's clock"


def test_xattrs_outlive_the_body_and_those_of_the_system_the_document(bucket: Bucket) -> None:
    key = bucket.key("attributed")
    of_system, of_user = {b"_dcplake": b"[1]"}, {b"note": b'"mine"'}
    drained = Drained()
    with bucket.streaming(bucket.now(key)) as consumer:
        bucket.set_with_xattrs(key, b'{"n":1}', of_user | of_system)
        drained.run(consumer, comes(key, of_user | of_system, b'{"n":1}'))
        bucket.set(key, b"no JSON")
        drained.run(consumer, comes(key, of_user | of_system, b"no JSON"))
        bucket.delete(key)
        drained.run(consumer, comes(key, of_system, b""))
    *_, first, second, deleted = rows_of(drained, key)
    assert first.datatype == Datatype.XATTR | Datatype.JSON
    assert second.datatype == deleted.datatype == Datatype.XATTR
    assert deleted.opcode == Opcode.DCP_DELETION


def test_a_compressed_value_comes_as_it_is(bucket: Bucket) -> None:
    key, value = bucket.key("compressed"), b'{"a":"%s"}' % (b"a" * 10_000)
    starts = bucket.now(key)
    bucket.set(key, deflate(value), datatype=Datatype.SNAPPY)
    with bucket.streaming(starts) as consumer:
        drained = Drained().run(consumer, lambda all_: bool(rows_of(all_, key)))
    [row] = rows_of(drained, key)
    if row.datatype == Datatype.JSON:
        bucket.skip("the bucket keeps values inflated: its compression mode is off")
    assert row.datatype == Datatype.JSON | Datatype.SNAPPY
    assert inflate(row.value) == value


@ENCRYPTED_TOO
def test_a_collection_made_again_under_its_name_is_another_one(bucket: Bucket) -> None:
    key, again = bucket.keys_together("collected", 2)
    vbucket = bucket.vbucket(key)
    drained = Drained()

    def events() -> list[SystemEventReceived]:
        return [each for each in drained.events if isinstance(each, SystemEventReceived)]

    def told(count: int) -> ManifestEvent:
        """Return the last of so many system events, once it has come."""
        drained.run(consumer, lambda _: len(events()) >= count)
        meaning = events()[-1].meaning
        assert meaning is not None
        return meaning

    def made(count: int) -> int:
        bucket.scopes.create_collection(scope, "orders")
        begun = told(count)
        assert isinstance(begun, CollectionBegun)
        return begun.collection_id

    with bucket.streaming(bucket.now(key)) as consumer:
        scope = bucket.create_scope("s")
        old = made(2)
        bucket.set(key, b"{}", collection=old)
        drained.run(consumer, holds(vbucket, key, b"{}"))
        bucket.scopes.drop_collection(scope, "orders")
        told(3)
        late = bucket.call(key, m.Store(key, b"late"), Opcode.SET, collection=old)
        assert late.status == Status.UNKNOWN_COLLECTION
        new = made(4)
        bucket.set(again, b"{}", collection=new)
        drained.run(consumer, holds(vbucket, again, b"{}"))
        with bucket.asking(vbucket) as (node, _):
            manifest = json.loads(node.collections_manifest() or b"{}")
        bucket.drop_scope(scope)
        told(6)
    [held] = [each for each in manifest["scopes"] if each["name"] == scope]
    [collection] = held["collections"]
    assert (collection["name"], int(collection["uid"], 16)) == ("orders", new)
    scope_id = int(held["uid"], 16)
    meanings = [each.meaning for each in events() if each.meaning is not None]
    assert [replace(each, manifest_uid=0) for each in meanings] == [
        ScopeCreated(0, scope_id, scope.encode()),
        CollectionBegun(0, scope_id, old, b"orders"),
        CollectionEnded(0, scope_id, old),
        CollectionBegun(0, scope_id, new, b"orders"),
        CollectionEnded(0, scope_id, new),
        ScopeDropped(0, scope_id),
    ]
    for numbers in ([each.seqno for each in events()], [each.manifest_uid for each in meanings]):
        assert numbers == sorted(numbers)
    assert old != new
    [first], [second] = rows_of(drained, key), rows_of(drained, again)
    assert (first.collection_id, second.collection_id) == (old, new)


def test_what_is_written_gets_to_the_disk_of_its_branch(bucket: Bucket) -> None:
    key = bucket.key("kept")
    bucket.set(key, b"{}")
    [start] = bucket.now(key)
    vbucket, position = start.vbucket, start.position
    with bucket.asking(vbucket) as (node, _):
        persisted = partial(node.persisted_seqnos, {vbucket: position.vb_uuid})
        wait_for("the disk", lambda: persisted()[vbucket] >= position.seqno)
        assert node.persisted_seqnos({vbucket: position.vb_uuid ^ 1}) == {}


def test_a_node_grants_and_takes_what_it_is_asked_for(bucket: Bucket) -> None:
    """Among that the order of backfills, for which it refuses a value that is none."""
    with bucket.asking(0, open_dcp=True) as (_, ready):
        assert not refused_features(ready.features)
        assert {*ready.refused_controls} <= {CHANGE_STREAMS}, "which is for buckets with history"
    with bucket.signed_in(bucket.owner(0)) as connection:
        opened = m.DcpOpen(bucket.key("controls"), OpenFlag.PRODUCER)
        assert connection.call(encode(opened, Opcode.DCP_OPEN)).status == Status.SUCCESS
        for order, status in (("sequential", Status.SUCCESS), ("sideways", Status.EINVAL)):
            control = m.DcpControl(b"backfill_order", order.encode())
            assert connection.call(encode(control, Opcode.DCP_CONTROL)).status == status


def test_a_snapshot_from_disk_tells_the_purge_seqno(bucket: Bucket) -> None:
    if bucket.release() < (8, 0):
        bucket.skip("servers tell the purge seqno from 8.0 on")
    keys = bucket.keys_together("old", 100)  # more than a checkpoint of ours has in memory
    for key in keys:
        bucket.set(key, b"{}")
    [start] = bucket.now(keys[0])
    beginning = replace(start, position=Position.beginning())
    with bucket.streaming([beginning]) as consumer:
        drained = Drained().run(consumer, holds(start.vbucket, keys[-1], b"{}"))
    started = [each for each in drained.events if isinstance(each, SnapshotStarted)]
    from_disk = [each for each in started if each.flags & SnapshotFlag.DISK]
    if not from_disk:
        bucket.skip("the node has all of the vbucket in memory: restart it, or write more")
    assert all(each.purge_seqno is not None for each in from_disk)


def test_a_tiny_window_lets_a_large_document_through(bucket: Bucket) -> None:
    large, small = bucket.keys_together("large", 2)
    value = random.Random(1).randbytes(MEBIBYTE)
    with bucket.streaming(bucket.now(large), window_bytes=TINY_BYTES) as consumer:
        bucket.set(large, value)
        bucket.set(small, b"{}")
        drained = Drained().run(consumer, holds(bucket.vbucket(small), small, b"{}"))
        assert drained.documents[bucket.vbucket(large)][large][2] == value


def test_a_stream_goes_on_inside_a_snapshot_without_a_gap_or_a_repeat(bucket: Bucket) -> None:
    keys = bucket.keys_together("many", 200)
    vbucket = bucket.vbucket(keys[0])
    [start] = bucket.now(keys[0])
    for key in keys:
        bucket.set(key, b'"%s"' % key.ljust(200, b"."))
    high_seqno = query_cluster(bucket.access).high_seqnos[vbucket]
    drained = Drained()
    with bucket.streaming([start], window_bytes=TINY_BYTES) as consumer:
        drained.run(consumer, lambda all_: all_.rows > 0, release=False)
    assert drained.rows < 200, "the window was to hold back most of it"
    position, log = drained.positions[vbucket], drained.logs[vbucket]
    resumed = replace(start, position=position, failover_log=log)
    with bucket.streaming([resumed], window_bytes=TINY_BYTES) as consumer:
        drained.run(consumer, lambda all_: all_.complete.get(vbucket, 0) >= high_seqno)
    assert drained.seqnos[vbucket] == list(range(start.position.seqno + 1, high_seqno + 1))
    assert drained.complete[vbucket] == drained.positions[vbucket].complete_seqno == high_seqno
    assert sorted(drained.documents[vbucket]) == sorted(keys)


def test_an_idle_stream_stays_open(bucket: Bucket) -> None:
    key = bucket.key("late")
    drained = Drained()
    noops = {"noop_interval_seconds": 1.0, "silence_grace_seconds": 1.0}
    with bucket.streaming(bucket.now(key), **noops) as consumer:
        drained.run(consumer, lambda all_: bool(all_.logs))
        for _ in range(4):  # a consumer bears with a silent node for 3 seconds
            assert consumer.next(1.0) is None
        bucket.set(key, b"{}")
        drained.run(consumer, holds(bucket.vbucket(key), key, b"{}"))
    assert sum(isinstance(event, StreamOpened) for event in drained.events) == 1


def test_nodes_hold_what_the_map_says_with_their_failover_logs(bucket: Bucket) -> None:
    def question(connection: NodeConnection) -> set[int]:
        return set(connection.all_vb_seqnos())

    probed = query_cluster(bucket.access)
    nodes = ask_nodes(probed.map.addresses, bucket.connection, bucket.credentials, question)
    vbuckets = range(probed.map.vbucket_count)
    owned = {
        node: {vb for vb in vbuckets if probed.map.owner(vb) == node}
        for node in probed.map.addresses
    }
    assert nodes == owned
    assert probed.failover_logs.keys() == set(vbuckets)
    [start] = bucket.now(bucket.key("any"))
    with bucket.streaming([start]) as consumer:
        drained = Drained().run(consumer, lambda all_: bool(all_.logs))
    assert drained.logs == {start.vbucket: probed.failover_logs[start.vbucket]}


def test_an_unknown_branch_is_ordered_back_to_the_beginning(bucket: Bucket) -> None:
    key = bucket.key("branch")
    bucket.set(key, b"{}")
    [start] = bucket.now(key)
    elsewhere = replace(start.position, vb_uuid=start.position.vb_uuid ^ 1)
    with bucket.streaming([replace(start, position=elsewhere)]) as consumer:
        drained = Drained().run(consumer, lambda all_: len(all_.events) == 2)
    assert drained.events[0] == RollbackOrdered(start.vbucket, elsewhere, 0)
    assert isinstance(drained.events[1], FailoverLogReceived)


@ENCRYPTED_TOO
def test_a_wrong_password_and_a_wrong_bucket_are_named(bucket: Bucket) -> None:
    seeds, credentials = bucket.access.source.seeds, bucket.credentials
    with pytest.raises(AuthenticationError, match=credentials.username):
        probe_cluster(seeds, bucket.connection, replace(credentials, password=Secret("wrong")))
    with pytest.raises(BucketError, match="dcplake-no-bucket"):
        probe_cluster(seeds, replace(bucket.connection, bucket="dcplake-no-bucket"), credentials)


def test_doctor_finds_nothing_wrong(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *bucket.words, "--set", f"lake.root={tmp_path / 'lake'}"]) == 0
    assert "failed" not in capsys.readouterr().out
