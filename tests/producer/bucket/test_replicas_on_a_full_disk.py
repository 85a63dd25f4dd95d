"""Replicas whose disk takes nothing: how much they receive, and how they go on."""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from time import sleep

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.commands import COMMANDS
from dcp.producer.replica_progress import REPLICATION, connection_name
from dcp.producer.replication import replication_bootstrap
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.window_policies import WindowPolicy, WindowPolicySettings
from dcp.server.bucket import replicas
from dcp.server.bucket.flusher import MOST_SHARE
from dcp.server.commands.session import Session
from dcp.server.replication.passive_connection import PassiveConnection
from dcp.server.storage.disk_file import Data, OsFile
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode
from tests.producer.compared_replicas import assert_replicas_are_equal

MakeCluster = Callable[..., ProducerCluster]
WINDOW_BYTES = 64 * 1024
QUOTA_BYTES = 2 * 1024 * 1024
VALUE = b"x" * 4096
COUNT = 1000


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    small = WindowPolicySettings(WindowPolicy.STATIC, size_bytes=WINDOW_BYTES)
    monkeypatch.setattr(replicas, "_WINDOWS", small)


@pytest.fixture
def behind(make_cluster: MakeCluster, tmp_path: Path, small_window: None) -> ProducerCluster:
    """Two nodes; the replica of the one vbucket has nothing of it, and all of it is on disk."""
    cluster = make_cluster(
        nodes=2,
        vbuckets=1,
        replicas=1,
        data_folder=tmp_path / "data",
        flush_seconds=0.01,
        checkpoint_quota_bytes=QUOTA_BYTES,
    )
    cluster.wait_until_replicated()
    cluster.pause_replication()
    for number in range(COUNT):
        cluster.set(b"k%d" % number, VALUE)
    with cluster.bucket.lock:
        cluster.bucket.vbuckets[0].data.persistence.flush()
    return cluster


def _refuse(monkeypatch: pytest.MonkeyPatch, log_name: str) -> None:
    """Let the disk have no room for what is appended to a log."""
    append, replace = OsFile.append, OsFile.replace

    def failing_append(file: OsFile, offset: int, parts: Iterable[Data]) -> None:
        if str(file).endswith(log_name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        append(file, offset, parts)

    def failing_replace(file: OsFile, parts: Iterable[Data]) -> None:
        if str(file).endswith(log_name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        replace(file, parts)

    monkeypatch.setattr(OsFile, "append", failing_append)
    monkeypatch.setattr(OsFile, "replace", failing_replace)


def _until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        sleep(0.01)


def _standing(number: Callable[[], int]) -> int:
    """Return a number that has stood still while the replicator looked for room several times."""
    while True:
        found = number()
        sleep(0.3)
        if number() == found:
            return found


def test_a_replica_receives_no_more_than_its_window(
    behind: ProducerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on when the disk takes something again."""
    bucket, replica = behind.bucket, behind.bucket.replicas.at(1, 0)
    assert replica is not None
    name = connection_name(0, 1, bucket.name, REPLICATION).encode()
    data, most_bytes = replica.vbucket.data, QUOTA_BYTES * MOST_SHARE

    def is_held_or_full() -> bool:
        with bucket.lock:
            connection = bucket.dcp_connections.get((0, name))
            is_held = connection is not None and connection.flow.room_bytes <= 0
            return (
                is_held and data.persistence.unwritten_bytes >= most_bytes
            ) or replica.high_seqno == COUNT

    with monkeypatch.context() as patched:
        _refuse(patched, "vb_0.1.log")
        behind.resume_replication()
        _until(is_held_or_full)
        received = _standing(lambda: replica.high_seqno)
        assert data.persistence.unwritten_bytes < most_bytes + 256 * 1024 + WINDOW_BYTES + 2 * len(
            VALUE
        )
        assert received < COUNT
    assert_replicas_are_equal(behind)
    assert replica.high_seqno == COUNT


class _Held:
    """A node's connection to the active's session that releases nothing."""

    def __init__(self, cluster: ProducerCluster) -> None:
        bucket = cluster.bucket
        self.session = Session(bucket, 0, COMMANDS, 0.0)
        self.to_server, self.to_client = FrameSplitter(), FrameSplitter()
        self.connection = PassiveConnection(
            replication_bootstrap(bucket.name, "held"),
            bucket.users.node_credentials,
            nonce="nonce",
            now=0.0,
            window_bytes=WINDOW_BYTES,
            liveness=LivenessSettings(),
        )
        self.connection.streams.follow(bucket.replicas.of_node(1), 0.0)

    def pump(self) -> list[int]:
        """Move bytes until none move; return the opcodes of what was said."""
        said: list[int] = []
        while True:
            requests = self.to_server.feed(self.connection.protocol.bytes_to_send())
            for index in range(len(requests)):
                said.append(requests.frame(index).opcode)
                self.session.feed(requests.frame(index), 0.0)
            answers = b"".join(self.session.output(1 << 20, 0.0))
            if not answers and not len(requests):
                return said
            self.connection.feed(self.to_client.feed(answers), 0.0)
            for stream in self.connection.touched.values():
                self.connection.consumed(stream.take_bytes())


def test_noops_are_answered_while_all_else_is_held(behind: ProducerCluster) -> None:
    held = _Held(behind)
    with behind.bucket.lock:
        said = held.pump()
        assert Opcode.DCP_BUFFER_ACK not in said
        assert (
            WINDOW_BYTES <= held.connection.window.unreleased_bytes < WINDOW_BYTES + 2 * len(VALUE)
        )
        noop = encode(m.Empty(), Opcode.DCP_NOOP, opaque=77).to_bytes()
        held.connection.feed(FrameSplitter().feed(noop), 1.0)
        answer = FrameSplitter().feed(held.connection.protocol.bytes_to_send()).frame(0)
        assert (answer.magic, answer.opcode) == (Magic.RESPONSE, Opcode.DCP_NOOP)
        assert answer.opaque == 77
        held.connection.release(1.0)
        assert held.connection.window.unreleased_bytes == 0
        assert held.pump()[0] == Opcode.DCP_BUFFER_ACK
        held.connection.streams.end()
        held.session.forget()
