"""The DCP half of a connection, after DCP_OPEN: its options, flow control and streams.

Streams take turns (``ready_list.py``), each as large as flow control and the write buffer allow.
NOOPs ignore flow control (kv_engine ``dcp/producer.cc``).
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from dcp.server.bucket.origin import BucketOrigin
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.counters import Counters
from dcp.server.model.key_quota import KeyQuota
from dcp.server.model.send_window import SendWindow
from dcp.server.model.server_settings import ServerSettings
from dcp.server.streams.active_stream import ActiveStream, ActiveStreamPhase
from dcp.server.streams.chunks import FrameBatch
from dcp.server.streams.dcp_options import (
    ConnectionKey,
    DcpClient,
    DcpOptions,
    OutOfOrder,
    StreamSettings,
    flavour_of,
)
from dcp.server.streams.noop import NoopTimer
from dcp.server.streams.ready_list import ReadyList
from dcp.server.streams.stream_quota import StreamQuota
from dcp.server.streams.stream_register import StreamRegister
from dcp.server.streams.stream_windows import CONNECTION_OPAQUE, StreamWindows
from dcp.server.streams.takeover import TakeoverPhase
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire.vocabulary import EndReason, Opcode

MAX_STREAMS: Final = 16 * 1024
"""Most streams of one connection: 16 for each of 1024 vbuckets."""
TURN_STREAMS: Final = 32
"""Most streams that one connection asks for data before other connections get their turn."""
DROPPED_STREAMS_AT_ONCE: Final = 256
"""Most streams of a lost connection that end before other connections get their turn."""
_LITTLE_PART: Final = 8
"""A batch is full once at most an eighth of its size is free."""
_UNLIMITED_ITEMS: Final = 2**62


@dataclass(frozen=True, slots=True)
class SharedByConnections:
    """The parts of a bucket that all its DCP connections use."""

    settings: ServerSettings
    counters: Counters
    origin: BucketOrigin
    memory: CheckpointAccount
    """Account of the checkpoints of vbuckets (replicas have their own)."""
    stream_quotas: defaultdict[int, StreamQuota]
    key_quota: KeyQuota = field(default_factory=KeyQuota)


class DcpConnection:
    """State of one DCP connection; ``close_session`` closes its TCP connection."""

    def __init__(
        self,
        client: DcpClient,
        shared: SharedByConnections,
        close_session: Callable[[], None],
        cursor_name: str,
    ) -> None:
        """``cursor_name`` names the cursors of its streams, usually like the connection.

        It differs while streams of an older connection of the same name still end.
        """
        self.client = client
        self.options = DcpOptions(keeps_cursors=client.is_internal)
        self.flow = SendWindow()
        self.stream_windows = StreamWindows()
        self.noop = NoopTimer(shared.settings.idle_timeout_seconds)
        self.cursor_name = cursor_name
        self.close_session = close_session
        self.streams = StreamRegister()
        self.bytes_sent = self.items_sent = 0
        self._shared = shared
        quotas = shared.stream_quotas
        self._quota = StreamQuota(MAX_STREAMS) if client.is_internal else quotas[self.key[0]]
        self._send_hook = None if client.is_internal else shared.origin.send_hook
        self.ready = ReadyList()
        """Streams with something to send; a relay's regulator reads it, too."""

    # --- what it is

    @property
    def key(self) -> ConnectionKey:
        return self.client.key

    @property
    def is_internal(self) -> bool:
        return self.client.is_internal

    @property
    def follows_server(self) -> bool:
        """True if it behaves like a Couchbase server's: no stream windows, few end reasons."""
        return self._shared.settings.rules == "server"

    @property
    def retains_history(self) -> bool:
        return self._shared.settings.history_retention_bytes > 0

    @property
    def closes_when_stuck(self) -> bool:
        """True if the connection is closed for acknowledging nothing, even if it answers NOOPs."""
        regex = self._shared.settings.stuck_name_regex
        return bool(regex and re.fullmatch(regex, self.client.display_name))

    @property
    def stuck_timeout_seconds(self) -> float:
        return self._shared.settings.stuck_timeout_seconds

    def negotiate(self, options: DcpOptions) -> None:
        """Use other options for streams that open from now on; open streams keep theirs."""
        self.options = options

    @property
    def may_take_over(self) -> bool:
        """True if the client may take over a vbucket, which makes it dead on this node.

        kv_engine asks for the DcpConsumer privilege
        (``daemon/protocol/mcbp/dcp_open_executor.cc``). Here the cluster's nodes and administrators
        have it.
        """
        return self.is_internal or self._shared.settings.is_administrator(self.client.user)

    def stream_settings(self) -> StreamSettings:
        settings, options = self._shared.settings, self.options
        if options.change_streams or not settings.bucket_type.scans_by_key:
            options = replace(options, out_of_order=OutOfOrder.NO)
        return StreamSettings(
            flavour_of(self.client, options, makes_up_metadata=settings.makes_up_metadata),
            options,
            cursor=self.cursor_name,
            prepare_extra_bytes=0 if self.is_internal else settings.prepare_extra_bytes,
            key_quota=self._shared.key_quota,
        )

    @property
    def paused_reason(self) -> str | None:
        """kv_engine's reason why nothing is being sent (``connhandler.cc``); None while sending."""
        if not self.ready:
            return "BufferLogFull" if self.ready.full_windows else "ReadyListEmpty"
        return "BufferLogFull" if self.flow.room_bytes <= 0 else None

    def is_stuck(self, now: float) -> bool:
        return self.closes_when_stuck and self.flow.is_stuck(self.stuck_timeout_seconds, now)

    @property
    def has_room_for_stream(self) -> bool:
        """True if the client may open another stream; a stream counts until its end is sent."""
        streams = self.stream_windows.streams
        return streams < MAX_STREAMS and (self.is_internal or self._quota.has_room(streams))

    def is_streaming(self, vbucket: int, stream_id: int | None = None) -> bool:
        """Return True if such a stream sends items; an ending stream may be replaced."""
        stream = self.streams.find(vbucket, stream_id)
        return stream is not None and stream.is_sending

    def acknowledged_seqno(self, vbucket: int) -> int:
        """Return the seqno of the last prepare that the client acknowledged; 0 without a stream."""
        stream = self.streams.find(vbucket, None)
        return stream.acknowledged_seqno if stream is not None and stream.is_sending else 0

    def acknowledged_prepares(self, stream: ActiveStream, seqno: int) -> None:
        """Note that the client has stored the stream's prepares up to ``seqno``."""
        stream.acknowledged(seqno)
        self._shared.origin.acknowledged(stream.vbucket)

    def add_stream(self, stream: ActiveStream) -> None:
        self.streams.add(stream)
        self.stream_windows.opened(stream.opaque)
        self._quota.opened()
        self.ready.wake(stream)
        self._shared.origin.stream_moved(stream.vbucket)

    def set_stream_window(self, window_bytes: int) -> None:
        """Set the window of every stream in bytes; 0 turns stream windows off."""
        self.stream_windows.set_window(window_bytes)
        for opaque in list(self.ready.full_windows):
            self.ready.window_changed(opaque)

    def take_acknowledgement(self, opaque: int, frame_bytes: int) -> bool:
        """Apply a DCP_BUFFER_ACK; return False if its opaque names no stream, present or past."""
        # No server looks at the opaque, so clients put anything there. Once stream windows were on,
        # a stream's opaque keeps its meaning: an acknowledgement can be under way while they are
        # switched off.
        if opaque == CONNECTION_OPAQUE or not self.stream_windows.names_streams:
            self.flow.acknowledge(frame_bytes)
            return True
        is_known = self.stream_windows.acknowledge(opaque, frame_bytes)
        self.ready.window_changed(opaque)
        return is_known

    @property
    def over_acked_bytes(self) -> int:
        return self.flow.over_acked_bytes + self.stream_windows.over_acked_bytes

    def close_stream(self, vbucket: int, stream_id: int | None) -> bool:
        stream = self.streams.find(vbucket, stream_id)
        if stream is None or not stream.is_sending:
            return False
        announce = self.options.announces_closed_streams
        stream.end(EndReason.CLOSED, announce=announce)
        self._shared.origin.stream_moved(vbucket)
        if announce:
            self.ready.wake(stream)
        else:
            # An unannounced stream would otherwise stay while the window is full.
            self._drop(stream)
        return True

    def end_streams(
        self, vbucket: int, reason: EndReason, spared: ActiveStream | None = None
    ) -> None:
        for stream in self.streams.of({vbucket}):
            if stream is not spared:
                stream.end(reason, announce=True)
                self.ready.wake(stream)
                self._shared.origin.stream_moved(vbucket)

    def takeover_answered(self, opcode: int, opaque: int) -> None:
        """Apply the client's answer to a takeover stream's marker or state message.

        Answers to other streams are ignored.
        """
        stream = self.streams.takeover(opaque)
        if stream is None or stream.takeover is None or not stream.is_sending:
            return
        if opcode == Opcode.DCP_SNAPSHOT_MARKER:
            stream.takeover.marker_answered()
        else:
            before, phase = stream.takeover.phase, stream.takeover.state_answered()
            if phase is not before and phase is TakeoverPhase.SENDING_REST:
                # The client is pending. The vbucket must be dead here before its last items go out,
                # so that no write comes after them.
                if not self._shared.origin.hand_over(stream, self.client):
                    stream.end(EndReason.STATE_CHANGED, announce=True)
            elif phase is TakeoverPhase.DONE:
                stream.end(EndReason.OK, announce=True)
        self.ready.wake(stream)

    def cursors_dropped(self, data: VbucketData, cursors: tuple[str, ...]) -> None:
        """Send the streams that lost these cursors of ``data`` back to the disk."""
        for stream in self.streams.of({data.vbucket}):
            # A client can stream the vbucket here and a replica elsewhere: its cursors have one
            # name in both.
            if stream.cursor in cursors and stream.is_of(data):
                stream.cursor_dropped()
                self._shared.counters.cursors_dropped += 1
                self.ready.wake(stream)

    def drop_some_streams(self) -> bool:
        """End some of a lost connection's streams; return True if more are left."""
        for stream in list(islice(self.streams, DROPPED_STREAMS_AT_ONCE)):
            stream.end(EndReason.DISCONNECTED, announce=False)
            self._forget(stream)
        return len(self.streams) > 0

    def drop_streams(self) -> None:
        for stream in self.streams:
            stream.end(EndReason.DISCONNECTED, announce=False)
            self._shared.origin.stream_moved(stream.vbucket)
        self.streams.clear()
        # One call for all streams: a connection can have 16,384.
        self._quota.ended(self.stream_windows.streams)
        self.stream_windows.clear()
        self.ready.clear()
        if self.is_internal:
            self._shared.memory.relieve()

    def vbuckets_changed(self, vbuckets: set[int]) -> bool:
        """Wake the streams of these vbuckets; return True if there are any."""
        streams = self.streams.of(vbuckets)
        for stream in streams:
            self.ready.wake(stream)
        return bool(streams)

    def next_frames(
        self, most_bytes: int, is_turn_over: Callable[[], bool] = lambda: False
    ) -> list[bytes | bytearray]:
        """Return stream messages to send: about ``most_bytes``, or one message of any size.

        Once ``is_turn_over`` returns True, no other stream is asked.
        """
        frames: list[bytes | bytearray] = []
        left, asked = most_bytes, 0
        hook = self._send_hook
        # In less room than this, a further stream's turn costs more than its few frames are worth.
        little_bytes = most_bytes // _LITTLE_PART
        while self.ready and left > little_bytes and self.flow.room_bytes > 0:
            # Asking one stream can cost a search of a whole checkpoint, or a read from disk.
            if asked == TURN_STREAMS or (asked and is_turn_over()):
                frames.append(b"")  # an empty frame keeps the connection in turn: more may follow
                break
            asked += 1
            stream = next(iter(self.ready))
            room_bytes = min(self.flow.room_bytes, self.stream_windows.room_bytes(stream.opaque))
            if room_bytes <= 0:
                # This stream waits for its own window; it must not hold up the others.
                self.ready.wait_for_window(stream)
                continue
            most_items = _UNLIMITED_ITEMS if hook is None else hook.most_items
            batch = stream.next_batch(room_bytes, left, most_items)
            if batch is not None and batch.data:
                self._charge(stream, batch)
            if batch is None or stream.phase is ActiveStreamPhase.DEAD:
                self._drop(stream)
            else:
                self.ready.end_turn(stream)
            if batch is None:
                self._shared.origin.stream_moved(stream.vbucket)
                continue
            data = batch.data
            if not data:  # the stream works on something; ask again next turn
                frames.append(data)
                break
            left -= len(data)
            if len(batch.seqnos):
                self.items_sent += len(batch.seqnos)
                self._shared.counters.count_items(
                    stream.vbucket, batch.seqnos, from_disk=batch.is_from_disk
                )
                self._shared.origin.stream_moved(stream.vbucket)
                if hook is not None:
                    data, must_end = hook.sending(
                        data, len(batch.seqnos), is_inside_snapshot=stream.is_inside_snapshot
                    )
                    if must_end:
                        frames.append(data)
                        self.close_session()
                        break
            frames.append(data)
        return frames

    def _charge(self, stream: ActiveStream, batch: FrameBatch) -> None:
        frame_bytes = len(batch.data)
        self.flow.charge(batch.charged_bytes)
        self.stream_windows.charge(stream.opaque, batch.charged_bytes)
        self.bytes_sent += frame_bytes
        if self.is_internal:
            self._shared.memory.relieve()
        counters = self._shared.counters
        counters.bytes_sent += frame_bytes
        if self.flow.window_bytes:
            counters.peak_unacked_bytes = max(
                counters.peak_unacked_bytes, self.flow.outstanding_bytes
            )
        counters.peak_stream_unacked_bytes = max(
            counters.peak_stream_unacked_bytes, self.stream_windows.peak_bytes
        )

    def _drop(self, stream: ActiveStream) -> None:
        """Take a stream off the ready list until it is woken, or for good if it has ended."""
        self.ready.drop(stream)
        if stream.phase is ActiveStreamPhase.DEAD:
            self._forget(stream)

    def _forget(self, stream: ActiveStream) -> None:
        self.streams.remove(stream)
        self.stream_windows.ended(stream.opaque)
        self._quota.ended()
        self._shared.origin.stream_moved(stream.vbucket)
        self.ready.remove(stream)
