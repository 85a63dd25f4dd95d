"""Applies a received block to its connection's state: rows together, other frames one by one.

Each stream sees its own frames in wire order. The cost depends on the streams that a block
concerns, not on the number of streams.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dcp.errors import FrameError, RemoteProtocolError
from dcp.protocol import events as e
from dcp.protocol.answers import take_answer
from dcp.protocol.negotiation import OUT_OF_ORDER
from dcp.protocol.rows import BlockRows, RowRun
from dcp.protocol.state import ConnectionState
from dcp.protocol.stream import Stream
from dcp.types import SnapshotRange
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.columns import DATA_OPCODES, decode_columns
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameBlock
from dcp.wire.leb128 import require_key_length, split_collection_key
from dcp.wire.system_event import ENDS_DOCUMENTS, decode_system_event
from dcp.wire.vocabulary import (
    HelloFeature,
    Magic,
    Opcode,
    OsoFlag,
    SnapshotFlag,
    StreamFlag,
    SystemEventKind,
    opcode_name,
)

_BYTE: Final = np.arange(256)
_IS_REQUEST: Final = np.isin(_BYTE, [int(Magic.REQUEST), int(Magic.ALT_REQUEST)])
_IS_DATA: Final = np.isin(_BYTE, [int(opcode) for opcode in DATA_OPCODES])

_ASKED_BY_CONTROL: Final[dict[int, str]] = {
    Opcode.DCP_OSO_SNAPSHOT: OUT_OF_ORDER,
    Opcode.DCP_PREPARE: "enable_sync_writes",
    Opcode.DCP_COMMIT: "enable_sync_writes",
    Opcode.DCP_ABORT: "enable_sync_writes",
}
_ASKED_BY_FLAG: Final[dict[int, StreamFlag]] = {
    Opcode.DCP_SET_VBUCKET_STATE: StreamFlag.TAKEOVER,
    Opcode.DCP_CACHE_TRANSFER: StreamFlag.CACHE_TRANSFER,
    Opcode.DCP_CACHE_TRANSFER_END: StreamFlag.CACHE_TRANSFER,
}


def read_block(state: ConnectionState, block: FrameBlock, now: float) -> list[e.Event]:
    """Return the events of ``block``, rows first; change ``state`` accordingly.

    Raises RemoteProtocolError for a violation, which makes ``state`` unusable. Raises SourceError
    for a refusal that the connection cannot work with.
    """
    state.liveness = state.liveness.heard(now)  # an empty block holds part of a frame
    if not len(block):
        return []
    opcodes = block.opcodes
    is_request = _IS_REQUEST[block.magics]
    # Frames after the answer to a window request count in the resized window. So the answer must be
    # handled before they are charged.
    if state.asked_windows or state.resize.asked_bytes is not None:
        answers = np.flatnonzero(~is_request & (opcodes == Opcode.DCP_CONTROL)) + 1
        if len(answers) and answers[0] < len(block):
            first, rest = _split(block, int(answers[0]))
            return [*read_block(state, first, now), *read_block(state, rest, now)]
    is_data = is_request & _IS_DATA[opcodes]
    data_frames = np.flatnonzero(is_data)
    _receive(state, block, is_request, len(data_frames) == len(block), now)
    columns = decode_columns(block, data_frames, collections=_with_collections(state))
    reading = _BlockReading(state, block, BlockRows(columns, data_frames), now)
    if len(data_frames) < len(block):
        for index in np.flatnonzero(~is_data).tolist():
            reading.take_control(block.frame(index), index)
    return reading.finish()


def _receive(
    state: ConnectionState,
    block: FrameBlock,
    is_request: NDArray[np.bool_],
    is_all_data: bool,
    now: float,
) -> None:
    flow = state.flow
    # The usual block: all its bytes count, and only for the connection.
    if is_all_data and not flow.counts_streams:
        flow.receive(block.frame_bytes, now)
        return
    opcodes = block.opcodes
    # All requests of the producer except NOOP occupy the window, headers included, even after we
    # closed their stream. Answers and pushed cluster maps are free (kv_engine
    # ``docs/dcp/documentation/flow-control.md``).
    counts = is_request & (opcodes != Opcode.DCP_NOOP)
    frame_bytes = block.frame_lengths[counts]
    if (extra_bytes := flow.settings.prepare_extra_bytes) > 0:
        frame_bytes = frame_bytes + extra_bytes * (opcodes[counts] == Opcode.DCP_PREPARE)
    flow.receive(int(frame_bytes.sum()), now)
    if flow.counts_streams:
        opaques = block.headers["opaque"][counts].astype(np.uint32)
        flow.receive_streams(opaques, frame_bytes, state.streams, now)


def _with_collections(state: ConnectionState) -> bool:
    return HelloFeature.COLLECTIONS in state.bootstrap.features


def _split(block: FrameBlock, index: int) -> tuple[FrameBlock, FrameBlock]:
    offsets = block.offsets
    return FrameBlock(block.buffer, offsets[: index + 1]), FrameBlock(block.buffer, offsets[index:])


class _BlockReading:
    """The processing of one block: the changing state, the rows, the events so far."""

    def __init__(
        self, state: ConnectionState, block: FrameBlock, rows: BlockRows, now: float
    ) -> None:
        self._now = now
        self._state = state
        self._block = block
        self._rows = rows
        self._events: list[e.Event] = []

    def take_control(self, frame: Frame, index: int) -> None:
        if frame.magic in (Magic.RESPONSE, Magic.ALT_RESPONSE):
            # The stream sent these rows before this frame.
            self._take_rows(frame.opaque, index)
            self._events += take_answer(self._state, frame, self._now)
        elif frame.magic is Magic.SERVER_REQUEST:
            self._take_server_request(frame)
        elif frame.magic is Magic.SERVER_RESPONSE:
            raise RemoteProtocolError(
                f"frame: found magic {frame.magic:#04x} from a server, expected it to a server"
            )
        elif frame.opcode == Opcode.DCP_NOOP:
            decode(frame)
            self._answer(frame)
        else:
            self._take_rows(frame.opaque, index)
            self._take_stream_message(frame, index)

    def finish(self) -> list[e.Event]:
        """Handle the rows after the last control frames; return all events."""
        for opaque in self._rows.opaques:
            self._take_rows(opaque, None)
        if self._state.hands_out_frames:
            return self._events
        columns = self._rows.kept()
        return [*([e.Items(columns)] if columns is not None else []), *self._events]

    def _take_rows(self, opaque: int, before: int | None) -> None:
        run = self._rows.take_before(opaque, before)
        if run is None:
            return
        stream = self._state.streams.get(opaque)
        if stream is None:
            self._require_closed(opaque, "a document")
            self._state.discarded_frames += self._rows.drop(run)
            return
        after = _of_vbucket(stream, lambda: _checked(stream, run))
        if not stream.is_streaming:
            self._state.discarded_frames += self._rows.drop(run)
        elif self._state.hands_out_frames:
            self._hand_out(stream, run.frames.tolist())
        self._store(opaque, stream, after)

    def _hand_out(self, stream: Stream, indices: list[int]) -> None:
        view, offsets = memoryview(self._block.buffer), self._block.offsets
        frames = tuple(view[int(offsets[at]) : int(offsets[at + 1])] for at in indices)
        self._events.append(e.ItemFrames(stream.vbucket, frames))

    def _take_stream_message(self, frame: Frame, index: int) -> None:
        handler = _HANDLERS.get(frame.opcode)
        stream = self._state.streams.get(frame.opaque)
        if handler is None:
            raise RemoteProtocolError(
                f"frame: found {opcode_name(frame.opcode)} from a server, expected a request of a "
                "stream, or a NOOP"
            )
        if stream is None:
            self._require_closed(frame.opaque, opcode_name(frame.opcode))
            self._decoded(frame)
            self._state.discarded_frames += 1
            return
        self._check_asked_for(frame, stream)
        if frame.vbucket != stream.vbucket:
            raise RemoteProtocolError(
                f"vbucket {stream.vbucket}: found {opcode_name(frame.opcode)} of vbucket "
                f"{frame.vbucket} with the opaque of its stream"
            )
        after, events = _of_vbucket(stream, lambda: handler(stream, self._decoded(frame)))
        if stream.is_streaming and self._state.hands_out_frames and frame.opcode in _ITEMS:
            self._hand_out(stream, [index])
        elif stream.is_streaming:
            self._events += events
        elif frame.opcode == Opcode.DCP_STREAM_END:
            # A stream that we closed must not seem to be ended by the producer.
            self._events.append(e.StreamClosed(stream.vbucket))
        else:
            self._state.discarded_frames += 1
        # A takeover goes on only after this answer.
        if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE:
            self._answer(frame)
        self._store(frame.opaque, stream, after)

    def _decoded(self, frame: Frame) -> m.Body:
        """Return the decoded message of a stream; checks the key of a sync write."""
        body = decode(frame)
        if isinstance(body, m.Prepare | m.Commit | m.Abort):
            key, collection = body.key, 0
            try:
                if _with_collections(self._state):
                    collection, key = split_collection_key(key)
                require_key_length(key, collection)
            except FrameError as error:
                raise FrameError(
                    f"{opcode_name(frame.opcode)} at seqno {_seqno(body)}: {error}"
                ) from None
        return body

    def _require_closed(self, opaque: int, found: str) -> None:
        """Raise unless we closed the stream: otherwise we would lose an item of another stream."""
        if opaque not in self._state.closed_opaques:
            raise RemoteProtocolError(
                f"frame: found {found} with opaque {opaque:#x}, expected the opaque of a stream "
                "that was asked for and has not ended"
            )

    def _store(self, opaque: int, before: Stream, after: Stream) -> None:
        """Store the stream; report and acknowledge a snapshot that it has completed."""
        self._state.put(opaque, after)
        if not before.is_streaming:
            return
        is_other = after.position is not before.position
        # With stream ids a vbucket has several positions, so none is reported.
        if is_other and after.stream_id is None and not self._state.hands_out_frames:
            self._state.moved[after.vbucket] = after.position
        if after.position.complete_seqno > before.position.complete_seqno:
            self._events.append(e.SnapshotCompleted(after.vbucket, after.position.complete_seqno))
        # A marker with the flag ACK is answered when its end is reached.
        wants_answer = after.assembly.flags & SnapshotFlag.ACK
        if wants_answer and after.assembly.is_marker_reached and before.assembly != after.assembly:
            marker = Frame(
                Magic.REQUEST,
                Opcode.DCP_SNAPSHOT_MARKER,
                vbucket_or_status=after.vbucket,
                opaque=opaque,
            )
            self._answer(marker)

    def _take_server_request(self, frame: Frame) -> None:
        body = decode(frame)
        if not isinstance(body, m.ClustermapNotification):
            self._state.discarded_frames += 1
        # The brief form announces a map without sending it.
        elif body.config:
            self._events.append(e.ClusterConfigReceived(body.config))

    def _check_asked_for(self, frame: Frame, stream: Stream) -> None:
        control = _ASKED_BY_CONTROL.get(frame.opcode)
        flag = _ASKED_BY_FLAG.get(frame.opcode)
        accepted = self._state.bootstrap.accepted_controls
        if (control and control not in accepted) or (flag and not stream.flags & flag):
            raise RemoteProtocolError(
                f"vbucket {stream.vbucket}: found {opcode_name(frame.opcode)}, expected none: "
                f"{control or f'stream flag {flag!r}'} was not asked for"
            )

    def _answer(self, frame: Frame) -> None:
        self._state.say(encode(m.Empty(), frame.opcode, magic=Magic.RESPONSE, opaque=frame.opaque))


def _checked(stream: Stream, run: RowRun) -> Stream:
    run.check_vbucket(stream.vbucket)
    if stream.expects_order:
        run.check_ascending()
    return stream.items(*run.bounds)


def _of_vbucket(stream: Stream, act: Callable[[], Any]) -> Any:
    """Run ``act``; name the vbucket in its RemoteProtocolError."""
    try:
        return act()
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"vbucket {stream.vbucket}: {error}") from None


_Handled = tuple[Stream, list[e.Event]]

_ITEMS: Final = frozenset(
    {Opcode.DCP_SYSTEM_EVENT, Opcode.DCP_PREPARE, Opcode.DCP_COMMIT, Opcode.DCP_ABORT}
)
"""Messages with seqnos of their own, in addition to documents."""


def _marker(stream: Stream, body: m.Body) -> _Handled:
    assert isinstance(body, m.SnapshotMarker)
    try:
        bounds = SnapshotRange(body.start, body.end)
    except ValueError as error:
        raise RemoteProtocolError(f"snapshot marker: {error}") from None
    started = e.SnapshotStarted(stream.vbucket, bounds, body.flags, body.purge_seqno)
    return stream.begin_snapshot(bounds, body.flags), [started]


def _end(stream: Stream, body: m.Body) -> _Handled:
    assert isinstance(body, m.StreamEnd)
    return stream.end(), [e.StreamEnded(stream.vbucket, body.reason)]


def _advanced(stream: Stream, body: m.Body) -> _Handled:
    assert isinstance(body, m.SeqnoAdvanced)
    return stream.advance(body.seqno), [e.StreamAdvanced(stream.vbucket, body.seqno)]


def _system_event(stream: Stream, body: m.Body) -> _Handled:
    assert isinstance(body, m.SystemEvent)
    meaning = decode_system_event(body)
    if meaning is None and body.event in ENDS_DOCUMENTS:
        raise RemoteProtocolError(
            f"system event at seqno {body.by_seqno}: found version {body.version} of "
            f"{SystemEventKind(body.event).name}, expected 0 or 1: so we cannot know which "
            "documents it deletes"
        )
    event = e.SystemEventReceived(
        stream.vbucket,
        body.by_seqno,
        body.event,
        body.version,
        body.key,
        body.value,
        meaning,
    )
    return stream.items(body.by_seqno, body.by_seqno), [event]


def _oso(stream: Stream, body: m.Body) -> _Handled:
    assert isinstance(body, m.OsoSnapshot)
    if body.flags == OsoFlag.START:
        return stream.begin_oso(), []
    if body.flags == OsoFlag.END:
        return stream.finish_oso(), []
    raise RemoteProtocolError(f"OSO_SNAPSHOT: found flags {body.flags:#x}, expected 1 or 2")


def _sync_write(stream: Stream, body: m.Body) -> _Handled:
    """Take the seqno of a sync-write message; it changes no committed document."""
    assert isinstance(body, m.Prepare | m.Commit | m.Abort)
    seqno = _seqno(body)
    return stream.items(seqno, seqno), []


def _seqno(body: m.Prepare | m.Commit | m.Abort) -> int:
    match body:
        case m.Prepare():
            return body.by_seqno
        case m.Commit():
            return body.commit_seqno
        case m.Abort():
            return body.abort_seqno


def _state_set(stream: Stream, body: m.Body) -> _Handled:
    assert isinstance(body, m.SetVbucketState)
    return stream, [e.VbucketStateSet(stream.vbucket, body.state)]


def _nothing(stream: Stream, _: m.Body) -> _Handled:
    return stream, []


_HANDLERS: Final[dict[int, Callable[[Stream, m.Body], _Handled]]] = {
    Opcode.DCP_SNAPSHOT_MARKER: _marker,
    Opcode.DCP_STREAM_END: _end,
    Opcode.DCP_SEQNO_ADVANCED: _advanced,
    Opcode.DCP_SYSTEM_EVENT: _system_event,
    Opcode.DCP_OSO_SNAPSHOT: _oso,
    Opcode.DCP_PREPARE: _sync_write,
    Opcode.DCP_COMMIT: _sync_write,
    Opcode.DCP_ABORT: _sync_write,
    Opcode.DCP_SET_VBUCKET_STATE: _state_set,
    Opcode.DCP_CACHE_TRANSFER: _nothing,
    Opcode.DCP_CACHE_TRANSFER_END: _nothing,
}
