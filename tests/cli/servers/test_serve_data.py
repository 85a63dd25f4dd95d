"""``dcplake serve --data``: a real process that is killed while clients write, or told to stop."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest

from dcp.client.kv.admin_client import AdminClient
from dcp.client.kv.kv_client import KvClient
from dcp.errors import SourceError
from dcp.server.vbucket.request_framing import DurabilityLevel
from dcp.types import FailoverLog, vbucket_of
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame_info import FrameInfo, RequestInfo, encode_frame_infos
from dcp.wire.vocabulary import HelloFeature, Opcode, Status
from tests.producer.raw_client import PLAIN_FEATURES, RawClient

VBUCKETS = 4
ACCOUNT = ("Administrator", "secret-of-the-test", "default")
Serve = Callable[..., "Served"]


class Served:
    """A process that serves from a folder."""

    def __init__(self, folder: Path, *more: str) -> None:
        words = ["serve", "--port", "0", "--vbuckets", str(VBUCKETS), "--data", str(folder), *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dcp.cli.main", *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "DCPLAKE_PASSWORD": ACCOUNT[1]},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.wait()
        self.seeds = json.loads(line)["seeds"]
        self.seed = self.seeds[0]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(90)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def kv(self) -> KvClient:
        return KvClient([self.seed], *ACCOUNT)

    def raw(self) -> RawClient:
        return RawClient(self.seed).log_in(password=ACCOUNT[1])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Serve from one folder, process after process."""
    started: list[Served] = []

    def start(*words: str) -> Served:
        started.append(Served(tmp_path / "data", *words))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.end(signal.SIGKILL)


def _log(client: RawClient, vbucket: int) -> FailoverLog:
    answer = client.ok(m.Empty(), Opcode.GET_FAILOVER_LOG, vbucket=vbucket)
    assert isinstance(answer, m.FailoverLogAnswer)
    return FailoverLog(answer.entries)


def _observed(client: RawClient, vbucket: int, vb_uuid: int) -> m.ObserveSeqnoAnswer:
    answer = client.ok(m.ObserveSeqno(vb_uuid), Opcode.OBSERVE_SEQNO, vbucket=vbucket)
    assert isinstance(answer, m.ObserveSeqnoAnswer)
    return answer


def _write_until_killed(served: Served, prefix: bytes, many: Event) -> None:
    with served.kv() as client:
        number = 0
        try:
            while True:
                for _ in range(20):
                    client.set([(prefix + b"%d" % number, b"%d" % number)])
                    number += 1
                many.set()
        except SourceError:
            return


@dataclass(frozen=True)
class _Reader:
    """What a consumer has of a vbucket: keys with values by seqno, all of one branch."""

    vbucket: int
    vb_uuid: int
    items: dict[int, tuple[bytes, bytes]]


def test_killed_while_clients_write(serve: Serve) -> None:
    """What was called persisted is there; who has more is rolled back, who has not goes on."""
    first = serve()
    writers = []
    for name in (b"x", b"y"):
        many = Event()
        writers.append(Thread(target=_write_until_killed, args=(first, name, many)))
        writers[-1].start()
        assert many.wait(90)
    readers, persisted = [], {}
    for vbucket in range(VBUCKETS):
        with first.raw() as client:
            vb_uuid = _log(client, vbucket).current_uuid
            while not (on_disk := _observed(client, vbucket, vb_uuid).persisted):
                pass
            persisted[vbucket] = on_disk
            high = _observed(client, vbucket, vb_uuid).current
            items = _items(client.open_dcp(), vbucket, high)
            readers.append(_Reader(vbucket, vb_uuid, items))
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    for writer in writers:
        writer.join(90)

    again = serve()
    for reader in readers:
        _check_after_a_kill(again, reader, persisted[reader.vbucket])


def _check_after_a_kill(again: Served, reader: _Reader, persisted: int) -> None:
    with again.raw() as client, again.raw() as other:
        branch, before = _log(client, reader.vbucket).entries
        assert (before.vb_uuid, before.seqno) == (reader.vb_uuid, 0)
        seen = _observed(client, reader.vbucket, branch.vb_uuid)
        last, kept = max(reader.items), branch.seqno
        assert seen.current == seen.persisted == kept >= persisted
        told = _items(other.open_dcp(b"from the beginning"), reader.vbucket, kept)
        assert sorted(told) == list(range(1, kept + 1))
        assert all(told[s] == item for s, item in reader.items.items() if s <= kept)
        answer = client.open_dcp().request_stream(
            reader.vbucket, last, vb_uuid=reader.vb_uuid, snapshot=(last, last)
        )
        if last > kept:
            assert answer.status == Status.ROLLBACK
            assert decode(answer) == m.RollbackAnswer(kept)
        else:
            assert answer.status == Status.SUCCESS


def _items(client: RawClient, vbucket: int, seqno: int) -> dict[int, tuple[bytes, bytes]]:
    """Stream a vbucket from its beginning to an item."""
    client.request_stream(vbucket)
    messages = client.messages_to(seqno)
    return {b.by_seqno: (b.key, b.value) for b in messages if isinstance(b, m.Mutation)}


def test_stopped_nothing_is_lost_and_no_branch_begins(serve: Serve) -> None:
    first = serve()
    documents = {b"k%d" % n: b"%d" % n for n in range(200)}
    with first.kv() as kv:
        kv.set(documents.items())
        kv.delete([b"k0"])
    with first.raw() as client:
        logs = [_log(client, vbucket) for vbucket in range(VBUCKETS)]
    assert first.end(signal.SIGTERM) == 0

    again = serve()
    with again.kv() as kv:
        assert kv.get(documents) == {k: v for k, v in documents.items() if k != b"k0"}
    with again.raw() as client:
        assert [_log(client, vbucket) for vbucket in range(VBUCKETS)] == logs
    assert again.end(signal.SIGTERM) == 0


def test_two_processes_on_one_folder(serve: Serve, tmp_path: Path) -> None:
    first = serve()
    words = ["serve", "--port", "0", "--vbuckets", str(VBUCKETS), "--data", str(tmp_path / "data")]
    second = subprocess.run(
        [sys.executable, "-m", "dcp.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "DCPLAKE_PASSWORD": ACCOUNT[1]},
    )
    assert second.returncode == SourceError.exit_code
    assert f'another process serves from it ({{"pid": {first.process.pid}' in second.stderr


def test_a_stop_tells_clients_what_they_were_sent(serve: Serve) -> None:
    """One that reads gets whole frames and then the end; one that does not holds nothing up."""
    served = serve()
    with served.raw() as writer, served.raw() as reader, served.raw() as stuck:
        for number in range(8):
            body = m.Store(b"\0k%d" % number, b"x" * 4_000_000)
            vbucket = vbucket_of(b"k%d" % number, VBUCKETS)
            writer.ok(body, Opcode.SET, vbucket=vbucket)
        for client, name in ((reader, b"reader"), (stuck, b"stuck")):
            client.open_dcp(name=name)
            for vbucket in range(VBUCKETS):
                client.request_stream(vbucket)
        reader.stream_frame()
        with ThreadPoolExecutor() as pool:
            code = pool.submit(served.end, signal.SIGTERM)
            assert len(reader.frames_to_the_end()) < 2 * VBUCKETS + 8
        assert code.result() == 0


def _write_durably(seed: str, keys: list[bytes], many: Event) -> list[bytes]:
    """Write keys that a majority has on disk when it is said so, until the end; return those."""
    features = (*PLAIN_FEATURES, HelloFeature.ALT_REQUEST, HelloFeature.SYNC_REPLICATION)
    wish = FrameInfo(RequestInfo.DURABILITY, bytes([DurabilityLevel.PERSIST_TO_MAJORITY]))
    infos, written = encode_frame_infos((wish,)), []
    with RawClient(seed).log_in(features, password=ACCOUNT[1]) as client:
        try:
            for key in keys:
                answer = client.call(m.Store(key, b"1"), Opcode.SET, framing_extras=infos)
                if answer.status != Status.SUCCESS:
                    break
                written.append(key)
                if len(written) == 20:
                    many.set()
        except EOFError:
            pass
    return written


def test_durable_writes_outlive_a_failover_and_a_kill(serve: Serve) -> None:
    """Replicas in the folder: what a majority had on disk is there, on whatever node it is now."""
    cluster = ("--nodes", "3", "--replicas", "2", "--vbuckets", "1")
    first, written = serve(*cluster), []
    with ThreadPoolExecutor() as pool:
        for node, end in enumerate((_fail_over_first_node, _kill)):
            many, keys = Event(), [b"%d-%d" % (node, n) for n in range(100_000)]
            writer = pool.submit(_write_durably, first.seeds[node], keys, many)
            assert many.wait(90)
            end(first)
            written += writer.result(90)
    again = serve(*cluster)
    with AdminClient(again.seeds[1:], *ACCOUNT) as admin:
        owner = next(node.number for node in admin.nodes() if node.vbuckets)
        assert [node.member for node in admin.nodes()] == [False, True, True]
    with KvClient([again.seeds[owner - 1]], *ACCOUNT) as kv:
        assert kv.get(written).keys() == set(written)
    assert again.end(signal.SIGTERM) == 0


def _fail_over_first_node(served: Served) -> None:
    with AdminClient(served.seeds, *ACCOUNT) as admin:
        admin.failover(1)


def _kill(served: Served) -> None:
    served.end(signal.SIGKILL)
