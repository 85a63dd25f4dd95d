"""Reading sightings out of one stream: its markers, and the items behind them."""

from dataclasses import dataclass, field
from typing import Any

from dcp.producer.model.manifest import DEFAULT_ID
from dcp.types import U64_MAX
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.leb128 import split_collection_key
from dcp.wire.system_event import decode_system_event
from dcp.wire.vocabulary import EndReason, SnapshotFlag, StreamFlag
from tests.producer_conformance.completions import commit_item
from tests.producer_conformance.sightings import (
    Item,
    Sightings,
    Snapshot,
    StreamKey,
    VbucketSightings,
    What,
)
from tests.producer_conformance.unseen_collections import named_by

_END_OF_SERVER = StreamFlag.TO_LATEST | StreamFlag.DISK_ONLY
"""The stream's end is the server's own."""


@dataclass(slots=True)
class WatchedStream:
    """A stream as the client sees it. ``at`` is how far the client has been shown everything."""

    about: VbucketSightings
    key: StreamKey
    answered_line: int
    request: m.StreamRequest
    is_legacy: bool
    at: int = field(init=False)
    _snapshot: Snapshot | None = None
    _is_in_memory: bool = False
    _empty: list[int] = field(default_factory=list)

    @property
    def request_line(self) -> int:
        """Where the client asked for it."""
        return self.key[0]

    def __post_init__(self) -> None:
        """Stand where the request says."""
        self.at = self.request.start

    def take_marker(
        self,
        line: int,
        marker: m.SnapshotMarker,
        seen: Sightings,
        *,
        since: int,
        after_silence: bool,
        sent_by: int,
    ) -> None:
        """Begin a snapshot. ``since`` is the last line after which a write may have come.

        What the first marker names was there when the stream was asked for if nothing can have come
        since, or if it comes from disk at once. Others were there at ``sent_by``.
        """
        is_disk = bool(marker.flags & SnapshotFlag.DISK)
        is_first = self._snapshot is None
        if is_first and is_disk:
            self._note_from_disk(seen)
        elif self._is_in_memory and marker.flags & SnapshotFlag.CHECKPOINT:
            self.about.checkpoints.add(marker.start)  # the first after one from disk is always one
        if is_disk and self._is_in_memory:
            self.about.cursor_dropped.append(line)
        self._note_left_out(line, seen)
        self._is_in_memory = not is_disk
        was_there = is_first and (since < self.answered_line or (is_disk and not after_silence))
        taken = self.request_line if was_there else min(line, sent_by)
        self._prove(taken, marker.end)
        is_filtered = bool(self.request.value)
        after = marker.end if is_filtered else self.at  # a filter leaves out what it likes
        self._snapshot = Snapshot(
            line,
            after,
            marker.end,
            after,
            taken_line=taken,
            is_unfiltered=not is_filtered,
            collections=self._collections if is_first and not self.at else frozenset(),
            is_legacy=self.is_legacy,
            born=self.request_line,
            hears=self._hears,
            hears_scope=self._scope,
            is_memory=not is_disk,
        )
        self.about.snapshots.append(self._snapshot)

    def _prove(self, line: int, seqno: int) -> None:
        self.about.streamed.append((line, seqno, self.request_line))

    def close(self, line: int) -> None:
        """No more comes; the client waited for more until then."""
        one = self._snapshot
        if one is None or one.up_to >= one.end:
            self.about.listened.append((self.answered_line, line, self.request_line, self._hears))

    @property
    def _hears(self) -> frozenset[int] | None:
        if self.is_legacy:
            return frozenset({DEFAULT_ID})
        return self._collections or None

    @property
    def _scope(self) -> int | None:
        named = (scope for _, scope in named_by(self.request.value))
        return next((number for number in named if number is not None), None)

    @property
    def _collections(self) -> frozenset[int]:
        named = (collection for collection, _ in named_by(self.request.value))
        return frozenset(number for number in named if number is not None)

    def _note_from_disk(self, seen: Sightings) -> None:
        seen.from_disk.add(self.key)

    def _note_left_out(self, line: int, seen: Sightings) -> None:
        """A marker comes behind a whole snapshot: two in a row without items are no accident."""
        before = self._snapshot
        if before is None or before.shown or before.up_to >= before.end:
            self._empty = []
            return
        self._empty.append(before.line)
        if len(self._empty) > 1:
            seen.left_out |= {*self._empty, line}

    def begin_out_of_order(self, line: int, seen: Sightings) -> None:
        """Begin a snapshot without a marker: it is from disk, and was there when asked for."""
        self._note_from_disk(seen)
        # Of seqnos that it does not show it says nothing but for its own collection.
        self._snapshot = Snapshot(
            line,
            U64_MAX,
            0,
            0,
            taken_line=self.request_line,
            collections=self._collections,
            born=self.request_line,
        )
        self.about.snapshots.append(self._snapshot)

    def end_out_of_order(self) -> None:
        """The next marker is the stream's first."""
        self._snapshot = None

    def show(self, line: int, item: Item) -> None:
        """Take an item of the snapshot."""
        self.about.items.append((line, item, self.request_line))
        self.reach(line, item.seqno)
        if self._snapshot is not None:
            self._snapshot.shown.add(item.seqno)
            if not self._snapshot.end:  # out of order
                self._prove(self._snapshot.taken_line, item.seqno)

    def reach(self, line: int, seqno: int) -> None:
        """Everything up to here was shown."""
        self.at = max(self.at, seqno)
        if self._snapshot is None:
            self._prove(line, seqno)
        else:
            self._snapshot.up_to = max(self._snapshot.up_to, seqno)
            if self.request.value:  # of what the filter leaves out it says nothing
                self._snapshot.after = max(self._snapshot.after, self._snapshot.up_to)

    def end(self, line: int, reason: int) -> None:
        """Take a STREAM_END, which proves that what the stream waited for came.

        That was its end; or for one that has none, without Collections, the default collection's.
        """
        if reason == EndReason.STATE_CHANGED:
            self.about.ended.append((line, self.request_line))
        elif reason == EndReason.OK and not self.request.flags & _END_OF_SERVER:
            if self.request.end < U64_MAX:
                self._prove(line, self.request.end)
                self.reach(line, self.request.end)
            elif self.is_legacy:
                self.about.dropped.append((line, DEFAULT_ID))


def held_by(request: m.StreamRequest) -> int:
    """The seqno that the server has if it goes on from this request."""
    if request.start == request.snap_start:
        return request.start
    return request.snap_end


def item_of(
    frame: Frame, body: m.Body, quality: tuple[bool, ...], *, collections: bool
) -> Item | None:
    """Return what a stream was shown; None for what has no seqno of its own."""
    fields: dict[str, Any]
    match body:
        case m.Mutation():
            fields = {"flags": body.flags, "expiry": body.expiry}
        case m.Deletion():
            fields = {"delete_time": body.delete_time or 0}
        case m.Expiration():
            fields = {"delete_time": body.delete_time}
        case m.SystemEvent():
            event = decode_system_event(body)
            if event is None:
                raise ValueError(f"seqno {body.by_seqno}: found event {body.event}, unknown here")
            return Item(body.by_seqno, body.key, What.SYSTEM_EVENT, event=event)
        case m.Prepare():
            fields = {"flags": body.flags, "expiry": body.expiry, "what": What.PREPARE}
            fields["message"] = body
        case m.Commit():
            collection_id, key = _split(body.key, collections=collections)
            return commit_item(body, collection_id, key)
        case m.Abort():
            collection_id, key = _split(body.key, collections=collections)
            what = What.ABORT
            return Item(body.abort_seqno, key, what, collection_id, message=body, quality=quality)
        case _:
            return None
    collection_id, key = _split(body.key, collections=collections)
    return Item(
        body.by_seqno,
        key,
        collection_id=collection_id,
        rev=max(1, body.rev_seqno),  # the first one is 1
        cas=frame.cas,
        opcode=frame.opcode,
        value=body.value,
        datatype=frame.datatype,
        quality=quality,
        **fields,
    )


def _split(key: bytes, *, collections: bool) -> tuple[int, bytes]:
    """Return the collection of a key as sent, and the key in it."""
    return split_collection_key(key) if collections else (0, key)
