"""One connection to one node: blocking calls for the application over a reader thread.

Memory: at most ``window_bytes`` plus one message in unreleased deliveries, plus one read buffer
from a pool, plus one unfinished message. Decoded columns copy their bytes, add about 100 bytes a
row, and never pin the read buffer. A large message gets a buffer of its own, which its value refers
to. TCP stops a node that ignores the window: reading stops at
``ConnectionSettings.unreleased_limit_bytes``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic

from dcp.client.addresses import NodeAddress
from dcp.client.awaited import Awaited
from dcp.client.buffer_pool import BufferPool
from dcp.client.delivery import ConnectionEnded, Delivery, DeliveryQueue
from dcp.client.protocol_connection import new_protocol_connection
from dcp.client.reader import Reader, SetUpStep
from dcp.client.settings import ConnectionSettings
from dcp.client.stats import ConnectionStats
from dcp.client.vbucket_track import StreamStart
from dcp.errors import LocalProtocolError
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import (
    ClusterConfigReceived,
    FailoverLogReceived,
    ManifestReceived,
    PersistenceReceived,
    Ready,
    SeqnosReceived,
)
from dcp.protocol.position import Position
from dcp.types import END_OF_TIME, FailoverLog
from dcp.wire.vocabulary import StreamFlag, VbucketState


class NodeConnection:
    """A DCP connection to one node. Any thread may call any method.

    ``name`` must be unique: a server closes an older connection of the same name. Several
    connections may share one ``queue``; each ends with a ``ConnectionEnded`` in it.
    """

    def __init__(
        self,
        address: NodeAddress,
        settings: ConnectionSettings,
        credentials: Credentials,
        name: str,
        *,
        queue: DeliveryQueue | None = None,
        buffers: BufferPool | None = None,
        open_dcp: bool = True,
    ) -> None:
        """``start`` or ``open`` connects. Without ``open_dcp`` the connection only answers
        questions, and opens no streams.
        """
        self.address = address
        self.name = name
        self._settings = settings
        self._owns_queue = queue is None
        self._queue = queue or DeliveryQueue()
        pool = buffers or BufferPool(settings.read_buffer_bytes, 1)
        protocol = new_protocol_connection(settings, credentials, name, open_dcp=open_dcp)
        self._reader = Reader(address, settings, protocol, name, self._queue, pool)

    # --- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect. ``Ready`` or the failure comes through the queue."""
        self._reader.start()

    def open(self, on_step: Callable[[SetUpStep], None] | None = None) -> Ready:
        """Connect and bootstrap; return when streams may be opened.

        ``on_step`` gets each step as it begins, in the reader's thread.

        Raises:
            NodeUnavailableError: not reachable, or not ready in time.
            AuthenticationError: user or password refused.
            BucketError: no such bucket, or no access to it.
            RemoteProtocolError: the node breaks the protocol.
        """
        awaited = Awaited(Ready)
        self._reader.awaited.append(awaited)
        self._reader.start(on_step)
        settings = self._settings
        # The reader has both limits of its own; this one only backs them up.
        most = settings.connect_timeout_seconds + settings.bootstrap_timeout_seconds + 1
        try:
            return awaited.wait(most, f"the bootstrap with {self.address}")[0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the streams, close, and wait for the end of the reader. A second call does nothing.

        It waits a second for a node that does not answer.
        """
        self.stop()
        if self._owns_queue:
            self._queue.close()
        self._reader.join()

    def stop(self) -> None:
        """Let the reader end the streams and close the connection. Does not wait."""
        self._reader.stop()

    # --- streams ---------------------------------------------------------------------------

    def open_stream(
        self,
        vbucket: int,
        position: Position,
        *,
        failover_log: FailoverLog | None = None,
        end_seqno: int = END_OF_TIME,
    ) -> None:
        """Request a stream.

        ``StreamOpened``, ``StreamRefused``, ``StreamRejected`` or ``RollbackOrdered`` follows.

        Raises:
            LocalProtocolError: the connection is closed, or has this stream already.
            DcplakeError: the error that ended the connection.
        """
        self.open_streams([StreamStart(vbucket, None, position, failover_log, end_seqno)])

    def open_streams(self, starts: Iterable[StreamStart], *, reads_replicas: bool = False) -> None:
        """Request several streams at once; see ``open_stream``.

        ``reads_replicas``: the node may have the vbuckets as replicas.
        """
        wanted = list(starts)

        def command(protocol: ConsumerConnection, now: float) -> None:
            for each in wanted:
                protocol.open_stream(
                    each.vbucket,
                    each.position,
                    failover_log=each.failover_log,
                    end_seqno=each.end_seqno,
                    flags=0 if reads_replicas else StreamFlag.ACTIVE_VB_ONLY,
                    filter=protocol.purge_filter(each.purge_seqno),
                )

        self._reader.call(command, "open_stream")

    def close_stream(self, vbucket: int) -> None:
        """Request the end of a stream that has not ended. Does not wait.

        ``StreamClosed`` follows, or the event that ended the stream or the connection before.
        """

        def close(protocol: ConsumerConnection, _: float) -> None:
            if protocol.has_stream(vbucket):
                protocol.close_stream(vbucket)

        self._reader.post(close)

    def change_stream_window(self, window_bytes: int) -> None:
        """Request another size for the windows of all streams, 0 for none. Does not wait.

        ``StreamWindowChanged`` comes with the node's answer.
        """
        self._reader.post(lambda protocol, _: protocol.change_stream_window(window_bytes))

    def next(self, timeout_seconds: float) -> Delivery | None:
        """Return the next delivery with events; None if none came in time.

        The caller releases it when it no longer holds its bytes.

        Raises:
            DcplakeError: the error that ended the connection, after everything that was received
                before.
            LocalProtocolError: the connection was closed on our side, perhaps during the wait.
        """
        if not self._owns_queue:
            raise LocalProtocolError("next(): this connection hands over to a shared queue")
        deadline = monotonic() + timeout_seconds
        while True:
            entry = self._queue.get(max(0.0, deadline - monotonic()))
            if isinstance(entry, ConnectionEnded):
                self._queue.put(entry)  # so that the next call says the same
                raise entry.error or LocalProtocolError(f"{self.address}: connection is closed")
            if entry is None:
                return None
            entry.take()
            if entry.events:
                return entry
            entry.release()

    def resize_window(self, window_bytes: int) -> None:
        """Give the connection another window; 0: no flow control. Does not wait.

        ``WindowRefused`` follows if the node refuses.
        """
        self._reader.post(lambda protocol, now: protocol.resize_window(window_bytes, now))

    @property
    def part_heard(self) -> tuple[int, float] | None:
        """The vbucket of the last message that came in parts, and the time of its newest part.

        The time is of ``time.monotonic``. None: no message came in parts.
        """
        return self._reader.part_heard

    def stats(self, now: float) -> ConnectionStats:
        """Return the connection's statistics (``now``: ``time.monotonic``). Does not wait."""
        return self._reader.stats(now)

    # --- questions -------------------------------------------------------------------------

    def all_vb_seqnos(self, state: VbucketState = VbucketState.ACTIVE) -> dict[int, int]:
        """Return the high seqno of every vbucket that this node has in ``state``.

        Raises:
            NodeUnavailableError: no answer in time.
            DcplakeError: the error that ended the connection.
        """
        [answer] = self._reader.ask(
            Awaited(SeqnosReceived),
            lambda protocol, _: protocol.request_seqnos(state),
            "the high seqnos",
        )
        return dict(answer.seqnos)

    def failover_logs(self, vbuckets: Collection[int]) -> dict[int, FailoverLog]:
        """Return the failover logs of several vbuckets, requested at once.

        The result lacks vbuckets that the node does not have, and logs that it refuses or that
        contradict themselves. Raises as ``all_vb_seqnos``.
        """
        if not vbuckets:
            return {}

        def command(protocol: ConsumerConnection, _: float) -> None:
            for vbucket in vbuckets:
                protocol.request_failover_log(vbucket)

        awaited = Awaited(FailoverLogReceived, vbuckets)
        events = self._reader.ask(awaited, command, f"{len(vbuckets)} failover logs")
        found = ((event.vbucket, event.failover_log) for event in events)
        return {vbucket: each for vbucket, each in found if each is not None}

    def persisted_seqnos(self, branches: Mapping[int, int]) -> dict[int, int]:
        """Return the persisted seqnos of several vbuckets on this node.

        ``branches`` gives the uuid of each vbucket's branch. The result lacks vbuckets that the
        node does not have, or has on another branch. Raises as ``all_vb_seqnos``.
        """
        if not branches:
            return {}

        def command(protocol: ConsumerConnection, _: float) -> None:
            for vbucket, vb_uuid in branches.items():
                protocol.request_persistence(vbucket, vb_uuid)

        awaited = Awaited(PersistenceReceived, branches)
        events = self._reader.ask(awaited, command, f"{len(branches)} persisted seqnos")
        seqnos = ((event.vbucket, event.persisted_seqno) for event in events)
        return {vbucket: seqno for vbucket, seqno in seqnos if seqno is not None}

    def cluster_config(self) -> bytes:
        """Return the JSON of the node's cluster map. Raises as ``all_vb_seqnos``."""
        [answer] = self._reader.ask(
            Awaited(ClusterConfigReceived),
            lambda protocol, _: protocol.request_cluster_config(),
            "the cluster map",
        )
        return answer.config

    def collections_manifest(self) -> bytes | None:
        """Return the manifest's JSON; None without a manifest. Raises as ``all_vb_seqnos``."""
        [answer] = self._reader.ask(
            Awaited(ManifestReceived),
            lambda protocol, _: protocol.request_manifest(),
            "the collections manifest",
        )
        return answer.manifest

    def request_seqnos(self, state: VbucketState = VbucketState.ACTIVE) -> None:
        """Request them without waiting. ``SeqnosReceived`` follows."""
        self._reader.call(lambda protocol, _: protocol.request_seqnos(state), "the high seqnos")

    def request_failover_log(self, vbucket: int) -> None:
        """Request it without waiting. ``FailoverLogReceived`` follows."""
        self._reader.call(
            lambda protocol, _: protocol.request_failover_log(vbucket), "failover log"
        )

    def request_cluster_config(self) -> None:
        """Request it without waiting. ``ClusterConfigReceived`` follows."""
        self._reader.call(lambda protocol, _: protocol.request_cluster_config(), "cluster map")
