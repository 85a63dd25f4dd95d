"""The end of an open connection: silence, the node, the application; received rows come first."""

import threading
from time import monotonic
from typing import Any

import pytest

from dcp.client import reader
from dcp.client.transport import Transport
from dcp.errors import LocalProtocolError, NodeUnavailableError
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected, connecting
from tests.client.cut_off import no_stream_cut_off
from tests.client.drained import PATIENCE_SECONDS, Drained, caught_up, fill, wait_for


def test_hanging_node_is_found_by_its_silence(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    fill(cluster, 50)
    with connected(cluster, noop_interval_seconds=1.0, silence_grace_seconds=0.5) as connection:
        for vbucket in range(8):
            connection.open_stream(vbucket, START)
        drained = Drained().run(connection, caught_up(cluster))
        cluster.hang_node(0)
        began = monotonic()
        with pytest.raises(NodeUnavailableError, match="silent for"):
            drained.run(connection, lambda _: False)
        assert monotonic() - began < 30, "the intervals that it was told, not the usual ones"
        cluster.restore_node(0)


def test_connection_of_the_same_name_ends_the_older(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster, "twin") as older, connected(cluster, "twin") as newer:
        with pytest.raises(NodeUnavailableError, match="closed"):
            Drained().run(older, lambda _: False)
        assert newer.all_vb_seqnos()


def test_what_was_received_is_delivered_before_the_failure(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 1000)
    with connected(cluster) as connection:
        connection.open_stream(0, START)
        wait_for("all sent", lambda: cluster.counters().items_sent.get(0) == 1000)
        cluster.drop_connections()
        drained = Drained()
        with pytest.raises(NodeUnavailableError):
            drained.run(connection, lambda _: False)
        assert drained.seqnos[0] == cluster.counters().seqnos_sent[0]
        with pytest.raises(NodeUnavailableError):
            connection.next(0.1)


def test_close_wakes_a_waiting_application(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster) as connection:
        caught: list[BaseException] = []
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            try:
                connection.next(60.0)
            except LocalProtocolError as error:
                caught.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert waiting.wait(PATIENCE_SECONDS)
        connection.close()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        assert len(caught) == 1
        with pytest.raises(LocalProtocolError, match="closed"):
            connection.open_stream(0, START)
        connection.close()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window_bytes": 2000},  # full: the STREAM_ENDs wait for room
        {"window_bytes": 0, "allow_no_flow_control": True, "unread_limit_bytes": 2000},
    ],
    ids=["with room", "full window", "no flow control, paused"],
)
def test_close_ends_the_streams_first(make_cluster: MakeCluster, changes: dict[str, Any]) -> None:
    cluster = make_cluster()
    fill(cluster, 2000, value_bytes=1000)
    with no_stream_cut_off(cluster), connected(cluster, **changes) as connection:
        for vbucket in range(7):
            connection.open_stream(vbucket, START)
        Drained().run(connection, lambda each: each.rows > 0, release=False)
        connection.open_stream(7, START)  # asked for, perhaps not there yet


def test_close_does_not_wait_for_a_node_that_hangs(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster) as connection:
        connection.open_stream(0, START)
        cluster.hang_node(0)
        began = monotonic()
        connection.close()
        assert monotonic() - began < 5, "the reader's bound, and not the NOOPs'"
        assert not connection._reader._thread.is_alive()
        cluster.restore_node(0)


def test_close_does_not_wait_for_a_connection_attempt(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is gone answers nothing: the attempt lasts, and nobody hears of it."""
    cluster = make_cluster()
    connect, begun, answers = Transport.connect, threading.Event(), threading.Event()

    def slow(*arguments: Any, **settings: Any) -> Transport:
        begun.set()
        assert answers.wait(PATIENCE_SECONDS)
        return connect(*arguments, **settings)

    monkeypatch.setattr(Transport, "connect", slow)
    monkeypatch.setattr(reader, "_JOIN_SECONDS", PATIENCE_SECONDS)
    connection = connecting(cluster)
    connection.start()
    assert begun.wait(PATIENCE_SECONDS)
    began = monotonic()
    connection.close()
    assert monotonic() - began < PATIENCE_SECONDS / 2
    answers.set()
    connection._reader._thread.join(PATIENCE_SECONDS)
    assert not connection._reader._thread.is_alive(), "it ends when it may"
