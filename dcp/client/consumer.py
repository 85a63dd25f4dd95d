"""Reads several vbuckets from several nodes as one sequence of deliveries, over lost connections.

Everything here runs on the application's thread, inside ``next``; reader threads only fill one
queue. So a position is always that of what ``next`` has returned. A stream that is requested again
resumes exactly there, inside a snapshot too: no row is delivered twice, none is skipped. An
out-of-order snapshot has no such position: if its stream is lost, the vbucket is given up. A node
that is slow to connect, dead or hung delays no other, since nothing waits for it.

``stream_keeper.py`` opens streams again. A vbucket without progress for ``node_deadline_seconds``
inside ``next`` ends with ``VbucketStopped``; the time of a busy application does not count. A node
that starts, or has left the cluster, refuses user, password or bucket, so the consumer tries again.
``next`` raises a refusal only if all nodes and seeds have failed and no node has accepted us
before. After that a dropped bucket or a revoked user ends vbuckets after ``node_deadline_seconds``,
too.

Memory: per node as ``connection.py`` says; nothing is buffered here.
"""

from collections.abc import Sequence
from random import Random
from time import monotonic

from dcp.client.addresses import NodeAddress, parse_seeds
from dcp.client.backoff import Backoff
from dcp.client.delivery import Delivery, DeliveryQueue
from dcp.client.node_links import NodeLinks
from dcp.client.settings import ConsumerSettings
from dcp.client.stats import ConnectionStats, StageStats
from dcp.client.stream_keeper import StreamKeeper
from dcp.client.vbucket_track import Phase, StreamStart
from dcp.protocol.credentials import Credentials
from dcp.protocol.position import Position


class Consumer:
    """Streams vbuckets from a cluster. Call ``next`` from one thread, and release its results."""

    def __init__(
        self,
        streams: Sequence[StreamStart],
        seeds: Sequence[str],
        settings: ConsumerSettings,
        credentials: Credentials,
        name_prefix: str = "dcplake",
        random: Random | None = None,
    ) -> None:
        """The first ``next`` begins to connect.

        Raises:
            ConfigError: no seeds, or a name prefix that servers refuse.
            ValueError: a vbucket occurs twice.
        """
        backoff = Backoff(
            settings.retry_first_seconds, settings.retry_cap_seconds, (random or Random()).random
        )
        self._queue = DeliveryQueue()
        self._links = NodeLinks(
            parse_seeds(list(seeds)),
            settings.connection,
            credentials,
            name_prefix,
            self._queue,
            backoff,
        )
        self._left_at = monotonic()
        self._keeper = StreamKeeper(
            streams, self._links, settings, backoff, self._queue, self._left_at
        )

    # --- what the application sees ---------------------------------------------------------

    def position(self, vbucket: int) -> Position:
        """Return a vbucket's position after everything that ``next`` has returned; from any thread.

        Only the consumer has it. It does not change after the stream was stopped.
        """
        return self._keeper.tracks[vbucket].position

    def is_streaming(self, vbucket: int) -> bool:
        """Return whether a vbucket has an open stream, as far as ``next`` has reported."""
        return self._keeper.tracks[vbucket].phase is Phase.STREAMING

    def trouble(self, vbucket: int) -> str:
        """Return the last reason why a vbucket had no stream; empty if it has one."""
        track = self._keeper.tracks[vbucket]
        return "" if track.phase is Phase.STREAMING else f"{track.address}: {track.detail}"

    def part_heard(self, node: NodeAddress) -> tuple[int, float] | None:
        """Return the vbucket of a node's last message that came in parts, and the time of the last
        part.

        ``next`` returns whole messages only. None: there was no such message.
        """
        connection = self._links.link(node).connection
        return None if connection is None else connection.part_heard

    def stats(self) -> list[ConnectionStats]:
        """Return the statistics of each connection; from any thread, does not wait."""
        return self._links.stats(monotonic())

    def buffer_stats(self) -> StageStats:
        """Return the number of lent socket buffers; from any thread."""
        return self._links.buffers.stats()

    def resize_windows(self, window_bytes: int) -> None:
        """Give all present and future connections another window; 0: no flow control.

        A refusal is logged once; the node keeps its window.

        Raises:
            ConfigError: no size for a window, or 0 without ``allow_no_flow_control``.
        """
        self._links.resize(window_bytes)

    def resize_stream_windows(self, window_bytes: int) -> None:
        """Give all present and future streams another window of their own; 0: none.

        Data servers refuse, since only the DCP document has such windows. The refusal is logged
        once, and the connections' windows hold alone. ``stats`` shows the windows of each
        connection's streams.

        Raises:
            ConfigError: no size for a window.
        """
        self._links.resize_streams(window_bytes)

    def request_high_seqnos(self, node: NodeAddress) -> bool:
        """Ask a node over the connection of its streams; ``next`` will return ``SeqnosReceived``.

        False: there is no connection.
        """
        return self._keeper.request_high_seqnos(node)

    def next(self, timeout_seconds: float) -> Delivery | None:
        """Return the next delivery, or None if there was none in time.

        Its ``events`` are the protocol's (``Items``, ``SnapshotStarted``, ``SnapshotCompleted``,
        ``StreamOpened``…) and ``VbucketStopped``. A rollback ends its vbucket with
        ``RollbackOrdered`` followed by ``FailoverLogReceived``.

        Raises:
            AuthenticationError: user or password refused, and every other node refuses too, or
                cannot be reached. After a node has accepted us this is not raised: vbuckets of
                nodes that refuse end with ``VbucketStopped`` after ``node_deadline_seconds``.
            BucketError: the same for a missing bucket, or no access to it; or a node that accepted
                us denies access to its streams.
            NoRelayError: a group's tag is set, and the node has no groups.
            LocalProtocolError: the consumer was closed, perhaps by another thread meanwhile.
        """
        self._keeper.excuse_absence(monotonic() - self._left_at)
        try:
            return self._next(monotonic() + timeout_seconds)
        finally:
            self._left_at = monotonic()

    def _next(self, deadline: float) -> Delivery | None:
        keeper = self._keeper
        while True:
            now = monotonic()
            if now >= keeper.act_at:
                keeper.act(now)
            if keeper.reports:
                events = list(keeper.reports)
                keeper.reports.clear()
                return Delivery(None, events)
            entry = self._queue.get(max(0.0, min(deadline, keeper.act_at) - now))
            if entry is None:
                if monotonic() >= deadline:
                    return None
                continue
            delivery = keeper.take(entry, monotonic())
            if delivery is not None:
                return delivery

    def stop_stream(self, vbucket: int) -> None:
        """End one vbucket. Only ``VbucketStopped`` follows for it; received data is dropped."""
        self._keeper.stop_stream(vbucket)

    def close(self) -> None:
        """Close all connections; from any thread. A waiting ``next`` raises LocalProtocolError."""
        self._queue.close()
        self._links.close()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
