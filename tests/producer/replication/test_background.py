"""Failures in the background of a cluster are logged, and the work goes on."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.server import Node
from dcp.server.replication.background import ended, keep_running, log_failure
from dcp.server.replication.passive_stream import PassiveStream
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Opcode, SnapshotFlag
from tests.producer.compared_replicas import assert_replicas_are_equal
from tests.producer.raw_client import PATIENCE_SECONDS

MakeCluster = Callable[..., ProducerCluster]
MEMORY = int(SnapshotFlag.MEMORY)


async def _fails(times: list[str]) -> None:
    times.append("again")
    if len(times) < 3:
        raise KeyError("lost")


def test_work_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    """Until it returns."""
    times: list[str] = []
    with caplog.at_level(logging.ERROR):
        asyncio.run(keep_running("counting", lambda: _fails(times)))
    assert len(times) == 3
    assert _told(caplog) == [("counting failed and starts again", "lost")] * 2


def test_work_that_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    async def wait_and_cancel() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(keep_running("waiting", work))
        task.add_done_callback(log_failure("waiting"))
        await begun.wait()
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], BaseException)
        assert task.cancelled()

    asyncio.run(wait_and_cancel())
    assert caplog.records == []


@pytest.mark.parametrize("expected", [(), (KeyError,)])
def test_work_that_fails_as_it_is_cancelled(
    caplog: pytest.LogCaptureFixture, expected: tuple[type[Exception], ...]
) -> None:
    """It is not begun again, and says so, unless that was to be expected."""
    times: list[str] = []

    async def work() -> None:
        times.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("broken")

    async def run() -> None:
        task = asyncio.ensure_future(keep_running("waiting", work))
        while not times:
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(10.0):
            await ended("waiting", task, expected=expected)

    asyncio.run(run())
    assert times == ["begun"]
    said = [] if expected else [("waiting failed while it stopped", "broken")]
    assert _told(caplog) == said


def test_a_cluster_whose_start_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, whatever it is; then its thread is over."""

    async def broken(_: ClusterNodes) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(ClusterNodes, "open", broken)
    cluster = ProducerCluster(ClusterSettings(vbuckets=1))
    with pytest.raises(KeyError, match="broken"):
        cluster.start()
    assert "producer" not in {thread.name for thread in enumerate_threads()}


def test_a_cluster_whose_end_fails_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Its folder is free, and what is in it is whole."""

    async def broken(_: Node, __: object) -> None:
        raise KeyError("broken")

    settings = ClusterSettings(vbuckets=1, data_folder=tmp_path)
    with monkeypatch.context() as patch, ProducerCluster(settings) as cluster:
        cluster.set(b"k", b"1")
        patch.setattr(Node, "_end", broken)
    assert _told(caplog) == [("end of a node failed while it stopped", "broken")]
    with ProducerCluster(settings) as cluster:
        assert cluster.get(b"k").value == b"1"


def test_a_task_that_fails_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        task = asyncio.ensure_future(_fails([]))
        task.add_done_callback(log_failure("counting"))
        await asyncio.wait((task,))
        await asyncio.sleep(0)  # the callback's turn

    asyncio.run(run())
    assert _told(caplog) == [("counting failed", "lost")]


def _told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, object]]:
    """Messages, each with what the error says that was logged with it."""
    return [
        (each.getMessage(), each.exc_info and each.exc_info[1] and each.exc_info[1].args[0])
        for each in caplog.records
    ]


class _Breaks:
    """A method of an object, that fails the first time; ``is_repaired`` is set when it ran."""

    def __init__(self, broken: Any, name: str) -> None:
        self.is_repaired = Event()
        self._has_failed = False
        self._real = getattr(broken, name)
        setattr(broken, name, self)

    def __call__(self, *arguments: Any) -> Any:
        if not self._has_failed:
            self._has_failed = True
            raise OSError("the disk is full")
        found = self._real(*arguments)
        self.is_repaired.set()
        return found


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("expiry pager", lambda cluster: _Breaks(cluster.bucket, "expire_due")),
        ("compactor", lambda cluster: _Breaks(cluster.bucket.replicas, "all_vbuckets")),
        ("flusher", lambda cluster: _Breaks(cluster.bucket.writes.flusher, "note")),
        ("watch of durable writes", lambda cluster: _Breaks(cluster.bucket.sync_writes, "check")),
        (
            "watch of waits for the disk",
            lambda cluster: _Breaks(cluster.bucket.persistence_waits, "check"),
        ),
    ],
)
def test_a_task_that_raises(
    make_cluster: MakeCluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    broken: Callable[[ProducerCluster], _Breaks],
) -> None:
    """One full disk, and it goes on all the same."""
    cluster = make_cluster(
        data_folder=tmp_path,
        expiry_pager_seconds=0.01,
        stale_removal_seconds=0.01,
        flush_seconds=0.01,
    )
    with cluster.batch():
        if name == "flusher":
            assert cluster.bucket.writes.flusher is not None
            cluster.bucket.writes.flusher._pending[cluster.bucket.vbuckets[0]] = 1
        breaks = broken(cluster)
        cluster.bucket.sync_writes.on_pending()
        cluster.bucket.persistence_waits.on_pending()
    assert breaks.is_repaired.wait(PATIENCE_SECONDS)
    assert f"{name} failed and starts again" in caplog.text
    assert "the disk is full" in caplog.text


def _old_item(stream: PassiveStream) -> list[bytes]:
    body = m.Mutation(b"\0k", b"1", 1, 1)
    return [encode(body, Opcode.DCP_MUTATION, opaque=stream.opaque).to_bytes()]


def _old_marker(stream: PassiveStream) -> list[bytes]:
    body = m.SnapshotMarker(0, 1, MEMORY)
    return [encode(body, Opcode.DCP_SNAPSHOT_MARKER, opaque=stream.opaque).to_bytes()]


def _other_vbucket(stream: PassiveStream) -> list[bytes]:
    body = m.SnapshotMarker(0, 1, MEMORY)
    frame = encode(body, Opcode.DCP_SNAPSHOT_MARKER, opaque=stream.opaque, vbucket=1)
    return [frame.to_bytes()]


def _no_message(stream: PassiveStream) -> list[bytes]:
    return [encode(m.KeyOnly(b"k"), Opcode.GET, opaque=stream.opaque).to_bytes()]


def _no_frame(_: PassiveStream) -> list[bytes]:
    return [b"\x55" * 24]


@pytest.mark.parametrize("bad", [_old_item, _old_marker, _other_vbucket, _no_message, _no_frame])
def test_a_bad_frame_between_nodes(
    make_cluster: MakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bad: Callable[[PassiveStream], list[bytes]],
) -> None:
    """The connection is made anew, and the replica gets the rest; what came before stays."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1)
    cluster.set(b"k", b"1")
    vbucket = cluster.vbucket_of(b"k")
    cluster.wait_until_replicated()
    owner = cluster.vbucket_owner(vbucket)
    replica = cluster.bucket.replicas.at(1 - owner, vbucket)
    assert replica is not None
    stream = replica.passive_stream
    assert isinstance(stream, PassiveStream)
    next_frames = DcpConnection.next_frames
    left = [bad(stream)]

    def with_bad_frame(
        self: DcpConnection, most_bytes: int, is_turn_over: Callable[[], bool]
    ) -> list[bytes | bytearray]:
        found = next_frames(self, most_bytes, is_turn_over)
        if found and left and self.key[0] == owner and self.is_internal:
            found += left.pop()
        return found

    monkeypatch.setattr(DcpConnection, "next_frames", with_bad_frame)
    for value in (b"2", b"3"):
        cluster.set(b"k", value)
        assert_replicas_are_equal(cluster)
    assert left == []
    logger = "dcp.server.replication.replicator"
    (said,) = [record for record in caplog.records if record.name == logger]
    assert said.getMessage().startswith(f"replication:node{owner + 1}->node{2 - owner}:default: ")
    assert said.getMessage().endswith("; connecting again")
