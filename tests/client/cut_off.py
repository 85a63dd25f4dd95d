"""Streams that lose their connection while they are open: a data node logs a warning for each."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from dcp.producer.cluster import ProducerCluster
from dcp.server.streams.active_stream import ActiveStream
from dcp.wire.vocabulary import EndReason
from tests.client.drained import wait_for


@contextmanager
def no_stream_cut_off(cluster: ProducerCluster) -> Iterator[None]:
    """Require that streams were opened inside, and each was closed before its connection."""
    ended: list[tuple[int, EndReason]] = []
    end = ActiveStream.end

    def noting(stream: ActiveStream, reason: EndReason, *, announce: bool) -> None:
        if stream.is_sending:
            ended.append((stream.vbucket, reason))
        end(stream, reason, announce=announce)

    with patch.object(ActiveStream, "end", noting):
        yield
        wait_for("the end of all connections", lambda: not cluster.counters().connections)
    assert ended
    assert [each for each in ended if each[1] is not EndReason.CLOSED] == []
