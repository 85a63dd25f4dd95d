"""STAT: the groups that operators ask for, what they say, and what they refuse."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.manifest_changes import CreateCollection, CreateScope, FlushCollection
from dcp.server.commands.stat_groups import GROUPS
from dcp.types import END_OF_TIME, U16_MAX
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.vocabulary import Opcode, Status, StreamFlag, VbucketState
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]


def below(found: dict[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): v for key, v in found.items() if key.startswith(prefix)}


@pytest.fixture
def client(cluster: ProducerCluster, connect: Connect) -> RawClient:
    return connect(cluster).log_in()


def fill(cluster: ProducerCluster, count: int = 5) -> None:
    with cluster.batch():
        for number in range(count):
            cluster.set(b"k%d" % number, b"{}")


@pytest.mark.parametrize(
    ("group", "status"),
    [
        ("nosuch", Status.KEY_ENOENT),
        ("dcp x", Status.KEY_ENOENT),
        ("memory x", Status.KEY_ENOENT),
        ("dcpagg", Status.KEY_ENOENT),
        ("dcp-vbtakeover", Status.KEY_ENOENT),
        ("dcp-vbtakeover x y", Status.EINVAL),
        ("dcp-vbtakeover 7 y", Status.NOT_MY_VBUCKET),
        ("checkpoint x", Status.EINVAL),
        ("checkpoint 65536", Status.EINVAL),
        ("checkpoint -1", Status.EINVAL),
        ("checkpoint " + "1" * 5000, Status.EINVAL),
        ("checkpoint 1", Status.NOT_MY_VBUCKET),
        ("vbucket-seqno 1", Status.NOT_MY_VBUCKET),
        ("vbucket-details x", Status.EINVAL),
        ("failovers 1", Status.NOT_MY_VBUCKET),
        ("collections-details x", Status.EINVAL),
        ("collections nosuch", Status.EINVAL),
        ("collections nosuch.a", Status.UNKNOWN_SCOPE),
        ("collections _default.nosuch", Status.UNKNOWN_COLLECTION),
        ("collections-byid 0x9", Status.UNKNOWN_COLLECTION),
        ("collections-byid x", Status.EINVAL),
        ("scopes nosuch", Status.UNKNOWN_SCOPE),
        ("scopes-byid 9", Status.UNKNOWN_SCOPE),
    ],
)
def test_refusals(client: RawClient, group: str, status: Status) -> None:
    answer = client.call(m.Stat(group.encode()), Opcode.STAT)
    assert answer.status == status
    if status is Status.NOT_MY_VBUCKET:
        assert json.loads(answer.value)["name"] == "default"


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_group_answers(cluster: ProducerCluster, client: RawClient, group: str) -> None:
    fill(cluster)
    needed = {"dcpagg": " :", "dcp-vbtakeover": " 0 x", "collections-byid": " 0"}
    needed["scopes-byid"] = " 0x0"
    assert client.statistics(group + needed.get(group, ""))


def test_a_connection_and_its_stream(
    cluster: ProducerCluster, client: RawClient, connect: Connect
) -> None:
    fill(cluster)
    dcp = connect(cluster).log_in()
    dcp.open_dcp(name=b"mine", window=10_000, set_noop_interval="30", backfill_order="sequential")
    dcp.request_stream(0)
    dcp.messages_to(5)
    dcp.ack(100)
    dcp.ok(m.Empty(), Opcode.NOOP)
    found = client.statistics("dcp")
    mine = below(found, "eq_dcpq:mine:")
    counters = cluster.counters()
    expected = {
        "user": "<ud>Administrator</ud>",
        "type": "producer",
        "paused": "true",
        "paused_current_reason": "ReadyListEmpty",
        "paused_reason": "ReadyListEmpty",
        "items_sent": "5",
        "items_remaining": "0",
        "total_bytes_sent": str(counters.bytes_sent),
        "noop_enabled": "true",
        "noop_tx_interval": "30 s",
        "noop_wait": "false",
        "backfill_order": "sequential",
        "flow_control": "enabled",
        "max_buffer_bytes": "10000",
        "unacked_bytes": str(counters.bytes_sent - 100),
        "total_acked_bytes": "100",
        "num_streams": "1",
        "num_dead_streams": "0",
        "stream_0_flags": "0",
        "stream_0_start_seqno": "0",
        "stream_0_end_seqno": str(END_OF_TIME),
        "stream_0_state": "in-memory",
        "stream_0_last_sent_seqno": "5",
        "stream_0_last_sent_snap_end_seqno": "5",
        "stream_0_memory_phase": "5",
        "stream_0_backfill_sent": "0",
        "stream_0_cursor_registered": "true",
    }
    assert {name: mine[name] for name in expected} == expected
    assert (found["ep_dcp_count"], found["ep_dcp_items_sent"]) == ("1", "5")


def test_a_stream_behind_a_full_window(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1)
    with cluster.batch():
        for number in range(100):
            cluster.set(b"%d" % number, b"x" * 100)
    checkpoints = cluster.bucket.vbuckets[0].data.checkpoints
    checkpoints.close_open()
    checkpoints.remove_closed()
    dcp = connect(cluster).log_in().open_dcp(name=b"mine", window=1000, noop=True)
    dcp.request_stream(0)
    dcp.messages_to(2)
    dcp.ok(m.Empty(), Opcode.NOOP)
    mine = below(connect(cluster).log_in().statistics("dcp"), "eq_dcpq:mine:")
    sent = int(mine["stream_0_last_sent_seqno"])
    assert 0 < sent < 100
    assert mine["paused_current_reason"] == "BufferLogFull"
    assert mine["items_remaining"] == str(100 - sent)
    assert mine["stream_0_state"] == "backfilling"
    assert mine["backfill_num_active"] == "1"
    assert mine["stream_0_backfill_sent"] == mine["stream_0_backfill_disk_items"] == str(sent)


def test_how_streams_are_told(
    cluster: ProducerCluster, client: RawClient, connect: Connect
) -> None:
    dcp = connect(cluster).log_in().open_dcp(name=b"mine")
    dcp.request_stream(0, flags=StreamFlag.ACTIVE_VB_ONLY)

    def streams(options: object) -> dict[str, str]:
        found = client.statistics("dcp", json.dumps(options).encode())
        return below(found, "eq_dcpq:mine:stream_0")

    assert streams({"stream_format": "skip"}) == {}
    told: dict[str, Any] = json.loads(streams({"stream_format": "json"})[""])
    assert (told["flags"], told["state"]) == (16, "in-memory")
    assert streams({"filter": {"user": "nobody"}}) == {}
    legacy = streams({"filter": {"user": "Administrator"}})
    assert legacy["_flags"] == "16"
    unread: list[object] = [[], {"stream_format": "nosuch"}, {"filter": 1}]
    assert [streams(malformed) for malformed in unread] == [legacy] * 3
    refused = client.call(m.Stat(b"dcp", b"[" + b"[]," * 22_000), Opcode.STAT)
    assert refused.status == Status.EINVAL
    assert b"found a value of 66001 bytes, expected at most 65536" in refused.value


@pytest.mark.parametrize(
    "other",
    [
        b"\xff" * 65_000 + b"a",
        b"\\" * 65_000,
        b"n" * U16_MAX,
        b"\xff" * 65_000 + b":a",
        b'"i":"1","a":"' + b"\xff" * 65_000,
    ],
)
def test_a_name_of_any_length_is_told(
    make_cluster: MakeCluster, connect: Connect, other: bytes
) -> None:
    """Which servers take that are no documents; two long names are told as two."""
    cluster = make_cluster(vbuckets=1, rules="server")
    cluster.set(b"k", b"1")
    for name in (b"\xff" * 65_000, other):
        connect(cluster).log_in().open_dcp(name=name).request_stream(0)
    client = connect(cluster).log_in()
    told = [key for key in client.statistics("dcp") if key.endswith(":num_streams")]
    assert len(told) == 2
    assert all(key.startswith("eq_dcpq:") for key in told)
    cursors = [key for key in client.statistics("checkpoint") if "eq_dcpq:" in key]
    assert len({key.partition("eq_dcpq:")[2].partition(":")[0] for key in cursors}) == 2
    assert client.statistics("dcpagg :")[":total:count"] == "2"


def test_sums_over_connections(
    cluster: ProducerCluster, client: RawClient, connect: Connect
) -> None:
    fill(cluster)
    for name in (b"replication:a", b"replication:b", b"views:a", b"plain", b'"i":"1","a":"go/1"'):
        connect(cluster).log_in().open_dcp(name=name).request_stream(0)
    found = client.statistics("dcpagg :")
    counts = {key: value for key, value in found.items() if key.endswith(":count")}
    assert counts == {
        ":total:count": "5",
        "replication:count": "2",
        "views:count": "1",
        "_unknown:count": "1",
        "go:count": "1",
    }
    assert found[":total:activestream_count"] == "5"


def test_a_takeover_that_nobody_does_yet(
    cluster: ProducerCluster, client: RawClient, connect: Connect
) -> None:
    fill(cluster)
    cluster.delete(b"k0")
    nobody = client.statistics("dcp-vbtakeover 0 mine")
    assert nobody == {
        "status": "connection_does_not_exist",
        "on_disk_deletes": "1",
        "vb_items": "4",
        "chk_items": nobody["chk_items"],
        "estimate": "5",
    }
    dcp = connect(cluster).log_in().open_dcp(name=b"mine")
    assert client.statistics("dcp-vbtakeover 0 mine")["status"] == "stream_does_not_exist"
    dcp.request_stream(0)
    dcp.messages_to(6)
    found = client.statistics("dcp-vbtakeover 0 mine")
    assert (found["name"], found["status"], found["estimate"]) == ("mine", "in-memory", "0")


def test_vbuckets(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=4)
    home = cluster.vbucket_of(b"k")
    cluster.set(b"k", b"1")
    cluster.set(b"k", b"2")
    client = connect(cluster).log_in()
    uuid = cluster.failover_log(home).current_uuid
    seqnos = client.statistics(f"vbucket-seqno {home}")
    assert seqnos == {
        f"vb_{home}:{name}": str(value)
        for name, value in {
            "high_seqno": 2,
            "abs_high_seqno": 2,
            "last_persisted_seqno": 2,
            "uuid": uuid,
            "purge_seqno": 0,
            "last_persisted_snap_start": 2,
            "last_persisted_snap_end": 2,
            "high_prepared_seqno": 0,
            "high_completed_seqno": 0,
            "max_visible_seqno": 2,
        }.items()
    }
    assert len(client.statistics("vbucket-seqno")) == 4 * len(seqnos)
    details = client.statistics(f"vbucket-details {home}")
    assert details[f"vb_{home}:num_items"] == "1"
    assert details[f"vb_{home}"] == "active"
    assert client.statistics(f"failovers {home}") == {
        f"vb_{home}:num_entries": "1",
        f"vb_{home}:num_erroneous_entries_erased": "0",
        f"vb_{home}:0:id": str(uuid),
        f"vb_{home}:0:seq": "0",
    }


def test_vbuckets_are_counted_by_their_state(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=4)
    client = connect(cluster).log_in()
    expected = {"active": 4, "replica": 0, "pending": 0, "dead": 0}
    for vbucket, state in enumerate(("replica", "dead", "pending", "dead")):
        cluster.set_vbucket_state(vbucket, VbucketState[state.upper()])
        expected["active"] -= 1
        expected[state] += 1
        found = client.statistics("")
        assert {name: int(found[f"vb_{name}_num"]) for name in expected} == expected
    dead = client.call(m.Stat(b"vbucket-seqno 1"), Opcode.STAT)
    assert dead.status == Status.NOT_MY_VBUCKET


def test_checkpoints(cluster: ProducerCluster, client: RawClient, connect: Connect) -> None:
    fill(cluster)
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0)
    before = client.statistics("checkpoint")
    dcp.messages_to(5)
    dcp.ok(m.Empty(), Opcode.NOOP)
    found = below(client.statistics("checkpoint 0"), "vb_0:")
    assert len(before) == len(found)
    assert (found["state"], found["num_checkpoints"]) == ("active", "1")
    assert found["num_checkpoint_items"] == found["num_open_checkpoint_items"] == "5"
    open_id = found["open_checkpoint_id"]
    assert found[f"id_{open_id}:state"] == "CHECKPOINT_OPEN"
    assert found["eq_dcpq:raw:cursor_seqno"] == "5"
    assert found["eq_dcpq:raw:num_items_for_cursor"] == "0"


def test_collections_and_scopes(cluster: ProducerCluster, client: RawClient) -> None:
    cluster.change_manifest(CreateScope("s"))
    cluster.change_manifest(CreateCollection("s", "c", 60), CreateCollection("s", "d"))
    for number in range(3):
        cluster.set(b"k%d" % number, b"1", collection="s.c")
    cluster.set(b"k", b"1")
    cluster.delete(b"k1", collection="s.c")
    c, d = (cluster.bucket.manifest.at(path) for path in ("s.c", "s.d"))
    prefix = f"{c.scope_id:#x}:{c.id:#x}:"
    everything = client.statistics("collections")
    assert everything["manifest_uid"] == "2"
    assert everything["0x0:0x0:items"] == "1"
    alone = below(client.statistics("collections s.c"), prefix)
    assert alone == {"items": "2", "name": "c", "scope_name": "s", "maxTTL": "60"}
    assert below(everything, prefix) == alone
    assert client.statistics(f"collections-byid {c.id:#x}") == client.statistics("collections s.c")
    scope = client.statistics("scopes s")
    assert scope == {
        f"{c.scope_id:#x}:items": "2",
        f"{c.scope_id:#x}:name": "s",
        f"{c.scope_id:#x}:collections": "2",
        prefix + "name": "c",
        f"{d.scope_id:#x}:{d.id:#x}:name": "d",
    }
    assert client.statistics(f"scopes-byid {c.scope_id:x}") == scope
    assert client.statistics("scopes")["manifest_uid"] == "2"
    details = client.statistics("collections-details 0")
    assert details[f"vb_0:{c.id:#x}:items"] == "2"
    cluster.change_manifest(FlushCollection("s", "c"))
    flushed = below(client.statistics("collections s.c"), prefix)
    assert (flushed["items"], flushed["flush_uid"]) == ("0", "3")


def test_memory(cluster: ProducerCluster, client: RawClient) -> None:
    fill(cluster)
    found = client.statistics("memory")
    assert int(found["ep_checkpoint_memory"]) > 0
    quota = cluster.settings.checkpoint_quota_bytes
    assert found["ep_checkpoint_memory_quota"] == str(quota)
    assert found["ep_checkpoint_memory_recovery_upper_mark_bytes"] == str(quota * 9 // 10)


def test_a_group_is_read_while_what_it_tells_of_changes(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    """A long answer waits half-told; streams come and go meanwhile; it is told to its end."""
    cluster = make_cluster(vbuckets=256)
    dcp = connect(cluster).log_in().open_dcp(name=b"mine")
    for vbucket in range(256):
        dcp.request_stream(vbucket)
    slow = connect(cluster).log_in()
    for _ in range(40):
        slow.send(encode(m.Stat(b"dcp"), Opcode.STAT))
    for vbucket in range(256):
        dcp.ok(m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=vbucket)
    ended = 0
    while ended < 40:
        body = decode(slow.answer())
        ended += isinstance(body, m.StatAnswer) and not body.key
    slow.ok(m.Empty(), Opcode.NOOP)
