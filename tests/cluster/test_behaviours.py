"""The behaviours of a cluster that dcplake relies on: the embedded producer's, and any other's.

docs/testing-consumers.md says how to run this against a cluster of your own.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest

from dcp.cli.main import main
from dcp.client.connection import NodeConnection
from dcp.client.probe import ask_nodes, probe_cluster
from dcp.errors import AuthenticationError, BucketError
from dcp.lake.receive.source_access import query_cluster
from dcp.protocol.credentials import Secret
from dcp.protocol.events import FailoverLogReceived, Items, RollbackOrdered, StreamOpened
from dcp.wire.vocabulary import Datatype, Opcode
from tests.client.drained import Drained
from tests.cluster.bucket import Bucket, holds

MEBIBYTE = 1024 * 1024
TINY_BYTES = 1024
"""Of a window: less than most messages here."""


def rows_of(drained: Drained, key: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield opcode, datatype, CAS and revision of each change of a key, in order."""
    for event in drained.events:
        if isinstance(event, Items):
            columns = event.columns
            for row, found in enumerate(columns.key.to_pylist()):
                if found == key:
                    yield (
                        int(columns.opcode[row]),
                        int(columns.datatype[row]),
                        int(columns.cas[row]),
                        int(columns.rev[row]),
                    )


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
    assert created[:3] == (Opcode.DCP_MUTATION, Datatype.JSON, first)
    assert replaced == (Opcode.DCP_MUTATION, Datatype.RAW, second, created[3] + 1)
    assert (deleted[0], deleted[3]) == (Opcode.DCP_DELETION, replaced[3] + 1)


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
    assert [row[0] for row in rows_of(drained, key)] == [Opcode.DCP_MUTATION, Opcode.DCP_EXPIRATION]


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

    view = query_cluster(bucket.access)
    nodes = ask_nodes(view.map.addresses, bucket.connection, bucket.credentials, question)
    vbuckets = range(view.map.vbucket_count)
    owned = {
        node: {vb for vb in vbuckets if view.map.owner(vb) == node} for node in view.map.addresses
    }
    assert nodes == owned
    assert view.failover_logs.keys() == set(vbuckets)
    [start] = bucket.now(bucket.key("any"))
    with bucket.streaming([start]) as consumer:
        drained = Drained().run(consumer, lambda all_: bool(all_.logs))
    assert drained.logs == {start.vbucket: view.failover_logs[start.vbucket]}


def test_an_unknown_branch_is_ordered_back_to_the_beginning(bucket: Bucket) -> None:
    key = bucket.key("branch")
    bucket.set(key, b"{}")
    [start] = bucket.now(key)
    elsewhere = replace(start.position, vb_uuid=start.position.vb_uuid ^ 1)
    with bucket.streaming([replace(start, position=elsewhere)]) as consumer:
        drained = Drained().run(consumer, lambda all_: len(all_.events) == 2)
    assert drained.events[0] == RollbackOrdered(start.vbucket, elsewhere, 0)
    assert isinstance(drained.events[1], FailoverLogReceived)


def test_a_wrong_password_and_a_wrong_bucket_are_named(bucket: Bucket) -> None:
    seeds, credentials = bucket.access.seeds, bucket.credentials
    with pytest.raises(AuthenticationError, match=credentials.username):
        probe_cluster(seeds, bucket.connection, replace(credentials, password=Secret("wrong")))
    with pytest.raises(BucketError, match="dcplake-no-bucket"):
        probe_cluster(seeds, replace(bucket.connection, bucket="dcplake-no-bucket"), credentials)


def test_doctor_finds_nothing_wrong(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *bucket.words, "--set", f"lake.root={tmp_path / 'lake'}"]) == 0
    assert "failed" not in capsys.readouterr().out
