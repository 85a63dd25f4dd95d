"""The JSON-lines loader and its KV client, against real sockets; and ``serve`` as a process."""

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dcp.client.kv.kv_client import BATCH_REQUESTS, KvClient
from dcp.client.kv.kv_connection import KvConnection
from dcp.client.kv.loader import KeyRule, LoadError, Progress, load_jsonl
from dcp.errors import (
    AuthenticationError,
    BucketError,
    ConfigError,
    NodeUnavailableError,
    SourceError,
)
from dcp.producer.cluster import ProducerCluster
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status
from tests.producer.conftest import Clock
from tests.producer.raw_client import PATIENCE_SECONDS

MakeCluster = Callable[..., ProducerCluster]


def _client(seeds: list[str], collection: str = "") -> KvClient:
    return KvClient(seeds, "Administrator", "password", "default", collection=collection)


def _load(
    seeds: list[str], path: Path, rule: KeyRule | None = None, progress: Progress | None = None
) -> int:
    return load_jsonl(
        seeds,
        path,
        user="Administrator",
        password="password",
        bucket="default",
        rule=rule,
        progress=progress,
    )


@pytest.fixture
def pair(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(nodes=2, vbuckets=16)


def _held(cluster: ProducerCluster, collection: int = 0) -> dict[bytes, bytes]:
    held: dict[bytes, bytes] = {}
    for vbucket in range(cluster.settings.vbuckets):
        high = cluster.high_seqno(vbucket)
        state = cluster.state_at(vbucket, high, collection=collection)
        held |= {key: document.value for key, document in state.items()}
    return held


def test_documents_reach_all_nodes(pair: ProducerCluster, clock: Clock) -> None:
    documents = {b"key%d" % n: b'{"n":%d}' % n for n in range(2000)}
    with _client(pair.seeds[1:]) as client:
        assert client.set(documents.items()) == 2000
        assert _held(pair) == documents
        assert client.get([b"key7", b"nosuch"]) == {b"key7": b'{"n":7}'}
        assert client.delete([b"key7", b"nosuch"]) == 1
        assert client.touch([b"key8", b"nosuch"], 10) == 1
    clock.now += 10
    assert pair.expire_due() == 1
    assert _held(pair).keys() == documents.keys() - {b"key7", b"key8"}


@dataclass
class Traffic:
    """The requests of all connections that are not answered; ``most`` there were at once."""

    under_way: int = 0
    most: int = 0
    refused_keys: set[bytes] = field(default_factory=set)
    """Keys of which the next write is refused for now."""


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    seen = Traffic()
    send, receive = KvConnection.send, KvConnection.receive
    sent_keys: dict[KvConnection, deque[bytes]] = {}

    def counted_send(self: KvConnection, requests: Sequence[Frame]) -> None:
        send(self, requests)
        sent_keys.setdefault(self, deque()).extend(request.key for request in requests)
        seen.under_way += len(requests)
        seen.most = max(seen.most, seen.under_way)

    def counted_receive(self: KvConnection, count: int) -> list[Frame]:
        answers = receive(self, count)
        seen.under_way -= count
        keys = [sent_keys[self].popleft() for _ in answers]
        refused = set(keys) & seen.refused_keys
        seen.refused_keys -= refused
        return [
            answer._replace(vbucket_or_status=int(Status.ETMPFAIL)) if key in refused else answer
            for key, answer in zip(keys, answers, strict=True)
        ]

    monkeypatch.setattr(KvConnection, "send", counted_send)
    monkeypatch.setattr(KvConnection, "receive", counted_receive)
    return seen


def test_writes_are_sent_while_others_are_not_answered(
    pair: ProducerCluster, traffic: Traffic
) -> None:
    """Two batches, and never more; of reads, whose answers may be long, one."""
    keys = [b"key%d" % number for number in range(4 * BATCH_REQUESTS + 1)]
    with _client(pair.seeds) as client:
        assert client.set((key, b"{}") for key in keys) == len(keys)
        assert (traffic.under_way, traffic.most) == (0, 2 * BATCH_REQUESTS)
        traffic.most = 0
        assert client.get(keys).keys() == set(keys)
        assert (traffic.under_way, traffic.most) == (0, BATCH_REQUESTS)
        assert client.delete(keys) == len(keys)
    assert (traffic.under_way, traffic.most) == (0, 2 * BATCH_REQUESTS)


@pytest.mark.parametrize("between", [0, BATCH_REQUESTS // 2, BATCH_REQUESTS])
def test_a_write_that_is_tried_again_does_not_undo_a_newer_one(
    pair: ProducerCluster, traffic: Traffic, between: int
) -> None:
    others = [(b"other%d" % number, b"{}") for number in range(between)]
    with _client(pair.seeds) as client:
        traffic.refused_keys = {b"key"}
        assert client.set([(b"key", b"1"), *others, (b"key", b"2")]) == between + 2
        assert client.get([b"key"]) == {b"key": b"2"}


def test_a_batch_that_only_some_nodes_got_leaves_no_answers_behind(
    pair: ProducerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"key%d" % number for number in range(40)]
    send, sent_to = KvConnection.send, set[str]()

    def second_node_is_lost(self: KvConnection, requests: Sequence[Frame]) -> None:
        if requests[0].opcode == Opcode.SET:
            sent_to.add(self.name)
            if len(sent_to) == 2:
                raise NodeUnavailableError("the connection broke")
        send(self, requests)

    with _client(pair.seeds) as client:
        client.set((key, b'"old"') for key in keys)
        monkeypatch.setattr(KvConnection, "send", second_node_is_lost)
        with pytest.raises(NodeUnavailableError):
            client.set((key, b'"new"') for key in keys)
        found = client.get(keys)
        assert found == _held(pair), "answers to the batch before are not taken for these"
        assert set(found.values()) <= {b'"old"', b'"new"'}


def test_a_write_that_is_refused_for_good_leaves_the_client_usable(pair: ProducerCluster) -> None:
    many = [(b"key%d" % number, b"{}") for number in range(3 * BATCH_REQUESTS)]
    with _client(pair.seeds) as client:
        with pytest.raises(SourceError, match=r"SET of b'k{251}': found .*EINVAL"):
            client.set([(b"k" * 251, b"{}"), *many])
        assert client.get([b"key7"]) == {b"key7": b"{}"}


def test_lines_before_a_bad_one_are_loaded(pair: ProducerCluster, tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    lines = BATCH_REQUESTS + 100
    path.write_text("".join(f'{{"id":{number}}}\n' for number in range(lines)) + "{\n")
    with pytest.raises(LoadError, match=f"line {lines + 1}: "):
        _load(pair.seeds, path, KeyRule("id"))
    assert len(_held(pair)) == lines


def test_a_moved_vbucket_is_found_again(pair: ProducerCluster) -> None:
    with _client(pair.seeds) as client:
        for vbucket in range(16):
            pair.move_vbucket(vbucket, 1 - pair.vbucket_owner(vbucket))
        assert client.set((b"key%d" % n, b"{}") for n in range(100)) == 100
    assert len(_held(pair)) == 100


def test_a_collection_is_loaded(pair: ProducerCluster, tmp_path: Path) -> None:
    pair.create_scope("s")
    number = pair.create_collection("s", "a")
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"id":{n}}}\n' for n in range(50)))
    assert _load(pair.seeds, lines, KeyRule("id", collection="s.a")) == 50
    documents = {b"%d" % n: b'{"id":%d}' % n for n in range(50)}
    assert _held(pair, number) == documents
    assert _held(pair) == {}
    with _client(pair.seeds, "s.a") as client:
        assert client.get([b"7"]) == {b"7": b'{"id":7}'}
        assert client.delete([b"7"]) == 1
    with pytest.raises(
        BucketError,
        match=r"'s\.b': found status 0x88 UNKNOWN_COLLECTION, there",
    ):
        _client(pair.seeds, "s.b")


def test_refused_logins(pair: ProducerCluster) -> None:
    with pytest.raises(AuthenticationError, match=r"AUTH_ERROR.*check the name 'nobody'"):
        KvClient(pair.seeds, "nobody", "password", "default")
    with pytest.raises(BucketError, match=r"EACCESS.*expected bucket 'other'"):
        KvClient(pair.seeds, "Administrator", "password", "other")
    seeds = pair.seeds
    pair.kill_node(0)
    _client(seeds).close()  # the second seed answers
    pair.kill_node(1)
    with pytest.raises(NodeUnavailableError, match="cannot connect"):
        _client(seeds)


def test_lines_are_loaded_by_each_key_rule(pair: ProducerCluster, tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text('{"key":"a","value":{"x":1.50}}\n\n{"key":"b","value":"é"}\n')
    seen: list[tuple[int, int, int]] = []
    loaded = _load(pair.seeds, path, progress=lambda *step: seen.append(step))
    assert loaded == 2
    assert seen == [(2, path.stat().st_size, path.stat().st_size)]
    line = '{"icao": "EDDF", "iata":"FRA", "n": 12}'
    path.write_text(line + "\n")
    for rule in (KeyRule(key_field="icao"), KeyRule(key_template="airport_{icao}_{n}")):
        assert _load(pair.seeds, path, rule) == 1
    assert _held(pair) == {
        b"a": b'{"x":1.50}',
        b"b": '"é"'.encode(),
        b"EDDF": line.encode(),
        b"airport_EDDF_12": line.encode(),
    }


@pytest.mark.parametrize(
    "seed", ["foo:bar", "", ":1", "foo:0", "foo:65536", "foo:-1", "a..b:1", f"{'x' * 70}:1"]
)
def test_a_seed_that_is_no_address_is_named(seed: str) -> None:
    with pytest.raises(ConfigError, match="write host:port") as raised:
        _client([seed])
    assert repr(seed) in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [
        "1.10",
        "12345678901234567890.123",
        "1e999",
        "-0",
        "9" * 5000,
        '{ "a" : [1.0, {"value": 2.50}],\t"b":"}\\",\\"value\\":1" }',
        r'"\u00e9\ud800"',
        "null",
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        '{"key":"a","value":%s}',
        ' {  "value" :  %s  , "key"\t: "a" } ',
        '\ufeff{"value":1, "key":"a", "value":%s}',
    ],
)
def test_a_value_is_stored_as_it_stands(line: str, value: str) -> None:
    assert KeyRule().document((line % value).encode()) == (b"a", value.encode())


@pytest.mark.parametrize(
    ("line", "rule", "message"),
    [
        ('{"key":"a","value":NaN}', KeyRule(), "line 2: found NaN, which is no JSON"),
        ('{"key":"a","value":[-Infinity]}', KeyRule(), "line 2: found -Infinity, which is no JSON"),
        ('{"id":"a","n":Infinity}', KeyRule(key_field="id"), "line 2: found Infinity, which is"),
        ('{"id":"a","n":NaN}', KeyRule(key_template="x_{id}"), "line 2: found NaN, which is no"),
        ("{", KeyRule(), "line 2: Expecting property name"),
        ("[1]", KeyRule(), "line 2: found a list, expected an object"),
        ('{"key":"a"}', KeyRule(), "line 2: found the fields ['key'], expected key and value"),
        ("{}", KeyRule(key_field="id"), "line 2: key from field 'id': found None"),
        ('{"id":true}', KeyRule(key_field="id"), "line 2: key from field 'id': found True"),
        ('{"a":1}', KeyRule(key_template="x_{b}"), "line 2: key from field 'b': found None"),
        ('{"id":"%s"}' % ("x" * 251), KeyRule(key_field="id"), "line 2: key: found 251 bytes"),
    ],
)
def test_bad_lines_are_named(
    pair: ProducerCluster, tmp_path: Path, line: str, rule: KeyRule, message: str
) -> None:
    path = tmp_path / "documents.jsonl"
    good = '{"key":"a","value":1}' if rule == KeyRule() else '{"id":"1","b":2}'
    path.write_text(f"{good}\n{line}\n")
    with pytest.raises(LoadError) as raised:
        _load(pair.seeds, path, rule)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_bad_rules_and_files(pair: ProducerCluster, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="expected one of them"):
        KeyRule("a", "{a}")
    with pytest.raises(LoadError, match="expected a field"):
        KeyRule(key_template="constant")
    with pytest.raises(LoadError, match="key template"):
        KeyRule(key_template="{")
    with pytest.raises(LoadError, match="cannot be read: No such file"):
        _load(pair.seeds, tmp_path / "none")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_when_it_is_ready_and_ends_on_a_signal(number: signal.Signals) -> None:
    code = (
        "from dcp.producer.serve import serve; "
        "from dcp.producer.cluster_settings import ClusterSettings; "
        "serve(ClusterSettings(nodes=2, vbuckets=8))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ}
    )
    with process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert (ready["bucket"], ready["pid"], len(ready["seeds"])) == (
                "default",
                process.pid,
                2,
            )
            with _client(ready["seeds"]) as client:
                client.set([(b"k", b"1")])
                assert client.get([b"k"]) == {b"k": b"1"}
            process.send_signal(number)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
