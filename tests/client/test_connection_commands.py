"""Commands and questions reach the reader thread in time, or fail at their caller, harmlessly."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dcp.client.connection import NodeConnection
from dcp.errors import LocalProtocolError, NodeUnavailableError
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected
from tests.client.drained import PATIENCE_SECONDS, Drained, assert_same_state, caught_up, fill


def test_unanswered_question_is_named_with_its_time(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster, request_timeout_seconds=0.2) as connection:
        cluster.hang_node(0)
        with pytest.raises(NodeUnavailableError, match=r"waited 0\.2 s for the high seqnos from"):
            connection.all_vb_seqnos()
        cluster.restore_node(0)


def test_failover_logs_are_asked_for_all_at_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=8, nodes=2)
    here = [vbucket for vbucket in range(8) if cluster.vbucket_owner(vbucket) == 0]
    with connected(cluster) as connection:
        assert connection.failover_logs(range(8)) == {v: cluster.failover_log(v) for v in here}
        assert connection.failover_logs([]) == {}
    with connected(cluster, request_timeout_seconds=0.2) as hasty:
        cluster.hang_node(0)
        with pytest.raises(NodeUnavailableError, match=r"waited 0\.2 s for 4 failover logs from"):
            hasty.failover_logs(here)
        cluster.restore_node(0)


def test_misuse_raises_at_the_caller_and_harms_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster) as connection:
        connection.open_stream(1, START)
        with pytest.raises(LocalProtocolError, match="vbucket 1"):
            connection.open_stream(1, START)
        assert connection.all_vb_seqnos()


@contextmanager
def busy_reader(connection: NodeConnection) -> Iterator[None]:
    """Keep the reader thread in a command, so that it comes to no other."""
    begun, go_on = threading.Event(), threading.Event()

    def block(_: object, __: float) -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=lambda: connection._reader.call(block, "a test"))
    thread.start()
    begun.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        go_on.set()
        thread.join()


@contextmanager
def never_sent(
    connection: NodeConnection, monkeypatch: pytest.MonkeyPatch, match: str
) -> Iterator[None]:
    """What is asked within waits in vain for a busy reader, and says so."""
    with busy_reader(connection):
        monkeypatch.setattr("dcp.client.reader._COMMAND_SECONDS", 0.1)
        with pytest.raises(NodeUnavailableError, match=match):
            yield
        monkeypatch.setattr("dcp.client.reader._COMMAND_SECONDS", 10.0)


def test_a_command_that_came_too_late_never_runs(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller tries again: run twice, a stream request would count as a misuse."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 5)
    with connected(cluster) as connection:
        with never_sent(connection, monkeypatch, r"waited 0\.1 s to send open_stream"):
            connection.open_stream(0, START)
        connection.open_stream(0, START)
        assert_same_state(cluster, Drained().run(connection, caught_up(cluster)))


def test_a_question_that_was_never_asked_takes_no_answer(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 5)
    with connected(cluster) as connection:
        with never_sent(connection, monkeypatch, "to send the high seqnos"):
            connection.all_vb_seqnos()
        assert connection.all_vb_seqnos() == {0: 5}
