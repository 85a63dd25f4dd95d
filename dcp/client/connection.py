"""One connection to one node: blocking calls for the application over a reader thread.

Memory: at most ``window_bytes`` plus one message in deliveries that are not released (decoded
columns copy their bytes, add about 100 bytes a row, and never pin the read buffer; a large message
is received into a buffer of its own, which its value then refers to), plus one read buffer, lent
by a pool, plus the frames being received (one unfinished message and one read buffer). A node that
ignores the window is stopped by TCP: reading stops at ``ConnectionSettings.held_limit_bytes``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from time import monotonic

from dcp.client.addresses import NodeAddress
from dcp.client.answers import Awaited, AwaitedOfVbuckets, E
from dcp.client.buffer_pool import BufferPool
from dcp.client.delivery import ConnectionEnded, Delivery, DeliveryQueue
from dcp.client.protocol_connection import new_protocol_connection
from dcp.client.reader import Command, Reader
from dcp.client.set_up import SetUpStep
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
    """A DCP connection to one node. All methods may be called from any thread.

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
        """Prepare; nothing is sent before ``start`` or ``open``.

        Without ``open_dcp`` the connection answers questions only; it opens no streams.
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
        """Begin to connect; ``Ready`` or the failure comes through the queue."""
        self._reader.start()

    def open(self, on_step: Callable[[SetUpStep], None] | None = None) -> Ready:
        """Connect and bootstrap, and return once streams may be opened.

        ``on_step`` hears of each step as it begins, in the reader's thread.

        Raises:
            NodeUnavailableError: not reachable, or not ready within the time.
            AuthenticationError: user or password refused.
            BucketError: no such bucket, or no access to it.
            RemoteProtocolError: the node breaks the protocol.
        """
        awaited = Awaited(Ready)
        self._reader.answers.add(awaited)
        self._reader.start(on_step)
        settings = self._settings
        # The reader has both limits of its own; this one only backs them up.
        most = settings.connect_timeout_seconds + settings.bootstrap_timeout_seconds + 1
        try:
            return self._reader.answers.wait(awaited, most, f"the bootstrap with {self.address}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the streams, close, and wait for the reader's end; a second call does nothing.

        A node that does not answer is left after a second.
        """
        self.stop()
        if self._owns_queue:
            self._queue.close()
        self._reader.join()

    def stop(self) -> None:
        """Tell the reader to end the streams and to close the connection, without waiting."""
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
        """Ask for a stream.

        ``StreamOpened``, ``StreamRefused``, ``StreamRejected`` or ``RollbackOrdered`` follows.

        Raises:
            LocalProtocolError: the connection is closed, or has this stream already.
            DcplakeError: what ended the connection.
        """
        self.open_streams([StreamStart(vbucket, None, position, failover_log, end_seqno)])

    def open_streams(self, starts: Iterable[StreamStart], *, reads_replicas: bool = False) -> None:
        """Ask this node for several streams at once; see ``open_stream``.

        ``reads_replicas``: it may have the vbuckets as replicas.
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
        """Ask the node to end a stream, if it has not ended. Does not wait.

        ``StreamClosed`` follows, or what ended the stream or the connection before.
        """

        def close(protocol: ConsumerConnection, _: float) -> None:
            if protocol.has_stream(vbucket):
                protocol.close_stream(vbucket)

        self._reader.post(close)

    def change_stream_window(self, window_bytes: int) -> None:
        """Ask for another size of all streams' windows, 0 for none. Does not wait.

        ``StreamWindowChanged`` is delivered with the node's answer.
        """
        self._reader.post(lambda protocol, _: protocol.change_stream_window(window_bytes))

    def next(self, timeout_seconds: float) -> Delivery | None:
        """Return the next delivery that tells anything; None where none came in time.

        Release it when its bytes are held no longer.

        Raises:
            DcplakeError: what ended the connection, after all that was received before.
            LocalProtocolError: the connection was closed by us, perhaps while waiting.
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

        ``WindowRefused`` is delivered where the node refuses.
        """
        self._reader.post(lambda protocol, now: protocol.resize_window(window_bytes, now))

    @property
    def part_heard(self) -> tuple[int, float] | None:
        """The vbucket of the last message that came in parts, and when its newest part came.

        By ``time.monotonic``; None: no message came in parts.
        """
        return self._reader.part_heard

    def stats(self, now: float) -> ConnectionStats:
        """Return how the connection stands (``now``: ``time.monotonic``); waits for nothing."""
        return self._reader.stats(now)

    # --- questions -------------------------------------------------------------------------

    def all_vb_seqnos(
        self,
        timeout_seconds: float | None = None,
        *,
        state: VbucketState = VbucketState.ACTIVE,
    ) -> dict[int, int]:
        """Return the high seqno of every vbucket that this node has in a state.

        Raises:
            NodeUnavailableError: no answer in time.
            DcplakeError: what ended the connection.
        """
        answer = self._ask(
            Awaited(SeqnosReceived),
            lambda protocol, _: protocol.request_seqnos(state),
            "the high seqnos",
            timeout_seconds,
        )
        return dict(answer.seqnos)

    def failover_logs(
        self, vbuckets: Collection[int], timeout_seconds: float | None = None
    ) -> dict[int, FailoverLog]:
        """Return the failover logs of several vbuckets, asked for all at once.

        Vbuckets that are not here, or whose log is refused or cannot be true, are left out.
        Raises as ``all_vb_seqnos``.
        """
        if not vbuckets:
            return {}

        def command(protocol: ConsumerConnection, _: float) -> None:
            for vbucket in vbuckets:
                protocol.request_failover_log(vbucket)

        awaited = AwaitedOfVbuckets(FailoverLogReceived, vbuckets)
        self._ask(awaited, command, f"{len(vbuckets)} failover logs", timeout_seconds)
        logs = ((event.vbucket, event.failover_log) for event in awaited.events)
        return {vbucket: log for vbucket, log in logs if log is not None}

    def persisted_seqnos(
        self, branches: Mapping[int, int], timeout_seconds: float | None = None
    ) -> dict[int, int]:
        """Return how far the branches of several vbuckets are on this node's disk.

        ``branches`` has the uuid of each vbucket's. Vbuckets that are not here, or not on that
        branch, are left out. Raises as ``all_vb_seqnos``.
        """
        if not branches:
            return {}

        def command(protocol: ConsumerConnection, _: float) -> None:
            for vbucket, vb_uuid in branches.items():
                protocol.request_persistence(vbucket, vb_uuid)

        awaited = AwaitedOfVbuckets(PersistenceReceived, branches)
        self._ask(awaited, command, f"{len(branches)} persisted seqnos", timeout_seconds)
        seqnos = ((event.vbucket, event.persisted_seqno) for event in awaited.events)
        return {vbucket: seqno for vbucket, seqno in seqnos if seqno is not None}

    def cluster_config(self, timeout_seconds: float | None = None) -> bytes:
        """Return the cluster map's JSON as this node knows it. Raises as ``all_vb_seqnos``."""
        return self._ask(
            Awaited(ClusterConfigReceived),
            lambda protocol, _: protocol.request_cluster_config(),
            "the cluster map",
            timeout_seconds,
        ).config

    def collections_manifest(self, timeout_seconds: float | None = None) -> bytes | None:
        """Return the manifest's JSON; None where there is none. Raises as ``all_vb_seqnos``."""
        return self._ask(
            Awaited(ManifestReceived),
            lambda protocol, _: protocol.request_manifest(),
            "the collections manifest",
            timeout_seconds,
        ).manifest

    def request_seqnos(self, state: VbucketState = VbucketState.ACTIVE) -> None:
        """Ask without waiting: ``SeqnosReceived`` will be delivered."""
        self._reader.call(lambda protocol, _: protocol.request_seqnos(state), "the high seqnos")

    def request_failover_log(self, vbucket: int) -> None:
        """Ask without waiting: ``FailoverLogReceived`` will be delivered."""
        self._reader.call(
            lambda protocol, _: protocol.request_failover_log(vbucket), "failover log"
        )

    def request_cluster_config(self) -> None:
        """Ask without waiting: ``ClusterConfigReceived`` will be delivered."""
        self._reader.call(lambda protocol, _: protocol.request_cluster_config(), "cluster map")

    def _ask(
        self,
        awaited: Awaited[E],
        command: Command[None],
        what: str,
        timeout_seconds: float | None,
    ) -> E:
        timeout = timeout_seconds or self._settings.request_timeout_seconds
        self._reader.answers.add(awaited)
        try:
            self._reader.call(command, what)
        except BaseException:  # never asked: it must not take the answer to a later question
            self._reader.answers.forget(awaited)
            raise
        return self._reader.answers.wait(awaited, timeout, f"{what} from {self.address}")
