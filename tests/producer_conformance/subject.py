"""Our producer, brought into a state and spoken to without sockets: bytes and a time in, bytes out.

The only module here that knows the producer from inside. Time is the recording's, so that NOOPs and
idle clients need no waiting. ``Line`` is a connection: what the socket's edge
(``dcp/producer/server/accepted_connection.py``) does with a session, step by step.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dcp.errors import FrameError
from dcp.producer.bucket.bucket import Bucket
from dcp.producer.bucket.dcp_connection import DcpConnection
from dcp.producer.commands.commands import COMMANDS
from dcp.producer.commands.session import Session
from dcp.producer.model.manifest import Collection, Scope
from dcp.producer.model.resume_rules import VbucketFacts
from dcp.producer.model.settings import ClusterSettings
from dcp.producer.model.versions import Content, SyncWrite, Version
from dcp.producer.server.cluster import ProducerCluster
from dcp.producer.streams.stream import ActiveStream
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode, VbucketState
from tests.producer_conformance.manifest_news import ManifestNews, with_news
from tests.producer_conformance.plan import DropCursors, Order, Purge, Requested, SetUp, Write
from tests.producer_conformance.sightings import Item, Sightings, What

SERVED_OPCODES: Final = frozenset(COMMANDS) | {
    opcode for opcode in Opcode if opcode.name.startswith("DCP_")
}
"""What our producer answers, and all of DCP. A data server has commands of its own beside them."""
_NODE: Final = 0
_OTHER_NODE: Final = 1
"""Has what the recorded server has not."""
_ENDLESS_BYTES: Final = 2**50
_ENDLESS_ITEMS: Final = 2**50
"""Memory keeps all it ever had: a stream that the recorded server served from disk is sent there.
A checkpoint ends where the recording shows one to begin."""
_KEEPER: Final = "recording"
"""The cursor that keeps all in memory."""
_IDLE_SLACK_SECONDS: Final = 2.0
"""A server looks for idle clients now and then only."""
_OPCODES: Final = {
    What.PREPARE: Opcode.DCP_PREPARE,
    What.HIDDEN: Opcode.DCP_PREPARE,
    What.ABORT: Opcode.DCP_ABORT,
}


class Subject:
    """A producer of one node that runs without sockets, in the state of a recorded server."""

    def __init__(self, sightings: Sightings) -> None:
        self._now = 0.0
        self._events = [
            item.event
            for about in sightings.vbuckets.values()
            for _, item, _ in about.items
            if item.event is not None
        ]
        settings = ClusterSettings(
            nodes=2,
            vbuckets=sightings.vbucket_count,
            bucket=sightings.buckets[0] if sightings.buckets else "default",
            users=sightings.logins or {"Administrator": "password"},
            seed=1,
            users_without_streams=frozenset(sightings.without_streams),
            administrators=frozenset(sightings.logins),  # who asked and was let is one
            rules="server",
            prepare_extra_bytes=2,
            record_seqnos=False,
            record_branches=False,
            checkpoint_quota_bytes=_ENDLESS_BYTES,
            checkpoint_items=_ENDLESS_ITEMS,
            clock=lambda: self._now,
            idle_timeout_seconds=_patience_seconds(sightings),
        )
        self._cluster = ProducerCluster(settings)
        for vbucket in self._cluster.bucket.map.vbuckets_of(_OTHER_NODE):
            self._cluster.bucket.map.move(vbucket, _NODE)

    def carry_out(self, order: Order) -> None:
        """Bring a vbucket into the next state; open streams hear of it."""
        if isinstance(order, SetUp):
            owner = _OTHER_NODE if order.state is None else _NODE
            self._cluster.bucket.map.move(order.vbucket, owner)
            facts = VbucketFacts(
                order.log,
                order.high_seqno,
                purge_seqno=order.purge_seqno,
                persisted_seqno=order.high_seqno - order.unpersisted_seqnos,
                collections_high_seqno=order.default_high_seqno,
                state=order.state or VbucketState.DEAD,
            )
            versions = [self._version(order.vbucket, item) for item in order.items]
            self._cluster.set_up_vbucket(order.vbucket, facts, versions)
            self._keep_in_memory(order.vbucket)
        elif isinstance(order, Purge):
            self._cluster.purge_tombstones(order.vbucket, order.up_to_seqno)
        elif isinstance(order, DropCursors):
            self._drop_cursors(order.vbucket)
        elif isinstance(order, Write):
            if order.checkpoint_begins:
                self._cluster.bucket.vbuckets[order.vbucket].data.checkpoints.close_open()
            versions = [self._version(order.vbucket, item) for item in order.items]
            self._cluster.take_versions(order.vbucket, versions)
        self.spread()

    def high_seqno(self, vbucket: int) -> int:
        """Return the newest seqno of a vbucket."""
        return self._cluster.high_seqno(vbucket)

    def learn_manifest(self, told: bytes) -> None:
        """Know the scopes and collections of a manifest that is newer than what events told.

        No vbucket emits anything: none was seen to.
        """
        tree = json.loads(told)
        uid, held = int(tree["uid"], 16), self._cluster.bucket.manifest
        if uid <= held.uid:
            return
        scopes = {int(scope["uid"], 16): scope for scope in tree["scopes"]}
        self._cluster.bucket.collections.current = replace(
            held,
            uid=uid,
            scopes={number: Scope(number, scope["name"]) for number, scope in scopes.items()},
            collections={
                int(each["uid"], 16): Collection(
                    int(each["uid"], 16), each["name"], number, each.get("maxTTL")
                )
                for number, scope in scopes.items()
                for each in scope["collections"]
            },
        )

    def learn_of_manifest(self, news: ManifestNews) -> None:
        """Know what an answer told of the manifest; no vbucket emits anything."""
        collections = self._cluster.bucket.collections
        collections.current = with_news(collections.current, news, self._events)

    def align(self, vbucket: int, requested: Requested) -> None:
        """Let the next write to a vbucket get the CAS, and be at the time, of the recorded one.

        The revisions of a key that is not known go on from the highest that was purged.
        """
        self._now = float(requested.now_seconds)
        held, item = self._cluster.bucket.vbuckets[vbucket], requested.item
        held.documents.clock.raise_floor(max(item.cas, 1) - 1)
        if item.rev and held.data.newest.of_key(item.key, item.collection_id) is None:
            held.data.newest.keys.forgotten_rev = item.rev - 1

    def _version(self, vbucket: int, item: Item) -> Version:
        """Return an item as the producer keeps it.

        What no stream shows is a prepare.
        """
        if item.event is not None:
            return Version.of_event(vbucket, item.event, seqno=item.seqno)
        opcode = _OPCODES.get(item.what, item.opcode)
        content = Content(
            item.value,
            item.datatype,
            item.flags,
            item.expiry,
            opcode,
            item.delete_time,
            _sync_write(item.message),
        )
        return Version(
            vbucket,
            item.key,
            content,
            seqno=item.seqno,
            rev=item.rev,
            cas=item.cas,
            collection=item.collection_id,
        )

    def spread(self) -> None:
        """Wake the streams of what has changed."""
        bucket = self._cluster.bucket
        changed = bucket.changes.collect()
        for connection in list(bucket.dcp_connections.values()):
            connection.vbuckets_changed(changed)

    def _keep_in_memory(self, vbucket: int) -> None:
        data = self._cluster.bucket.vbuckets[vbucket].data
        data.checkpoints.register(_KEEPER, data.base_seqno, droppable=False)

    def _drop_cursors(self, vbucket: int) -> None:
        for connection in self._cluster.bucket.dcp_connections.values():
            _drop(self._cluster.bucket, connection, connection.streams.of({vbucket}))

    def new_map(self, line: "Line") -> None:
        """Let the cluster map have a new revision, which a connection hears of."""
        cluster_map = self._cluster.bucket.map
        cluster_map.move(0, cluster_map.owner(0) or _NODE)  # stays: only the revision grows
        line.push_map()

    def connect(self) -> "Line":
        """Open a connection."""
        return Line(Session(self._cluster.bucket, _NODE, COMMANDS, 0.0))


def _patience_seconds(sightings: Sightings) -> float:
    """How long a client may be silent that owes the answer to a NOOP."""
    found = sightings.idle_timeout_seconds
    return ClusterSettings().idle_timeout_seconds if found is None else found - _IDLE_SLACK_SECONDS


def _sync_write(message: m.Prepare | m.Commit | m.Abort | None) -> SyncWrite | None:
    match message:
        case m.Prepare():
            return SyncWrite(level=message.level, deletes=bool(message.deleted))
        case m.Commit() | m.Abort():
            return SyncWrite(message.prepared_seqno)
    return None


def _drop(bucket: Bucket, connection: DcpConnection, streams: Iterable[ActiveStream]) -> None:
    """Take from streams of a connection their cursors: they go on from the disk."""
    for stream in streams:
        data = bucket.vbuckets[stream.vbucket].data
        data.checkpoints.remove(stream.cursor)
        connection.cursors_dropped(data, (stream.cursor,))


class Line:
    """One connection to the subject. ``received`` are frames that it sent and nobody took yet."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._in = FrameSplitter(session.max_frame_bytes)
        self._out = FrameSplitter()
        self._is_forgotten = False

    @property
    def is_closed(self) -> bool:
        """Whether the producer has closed, or is about to once it said its last answers."""
        return self._session.is_closing

    def send(self, data: bytes, now: float) -> None:
        """Hand over bytes of the client."""
        if self._session.is_closing:
            return
        try:
            block = self._in.feed(data)
        except FrameError:
            self._session.abort()
            return
        for index in range(len(block)):
            self._session.feed(block.frame(index), now)
        self._in.max_frame_bytes = self._session.max_frame_bytes

    def send_to_disk(self, request: Frame) -> None:
        """Let the stream that was just granted begin on disk, though memory has it all."""
        if self._session.dcp is not None:
            granted = self._streams(request.vbucket, request.opaque)[-1:]
            _drop(self._session.bucket, self._session.dcp, granted)

    def _streams(self, vbucket: int, opaque: int) -> list[ActiveStream]:
        dcp = self._session.dcp
        found = [] if dcp is None else dcp.streams.of({vbucket})
        return [stream for stream in found if stream.opaque == opaque]

    def next_message_of(self, vbucket: int, stream_id: int | None, now: float) -> list[Frame]:
        """Return what goes out before all stream messages, and one message of a stream; or nothing.

        Which of a connection's streams goes next is the server's own matter.
        """
        dcp = self._session.dcp
        if dcp is None:
            return self.next_message(now)
        wanted = vbucket, stream_id
        others = [one for one in dcp.ready if (one.vbucket, one.stream_id) != wanted]
        for stream in others:
            dcp.ready.drop(stream)
        found = self.next_message(now)
        for stream in others:
            dcp.ready.wake(stream)
        return found

    def answers(self, now: float) -> list[Frame]:
        """Return what goes out before all stream messages: answers, NOOPs, notifications."""
        found: list[Frame] = []
        while more := self._frames(0, now):
            found += more
        return found

    def next_message(self, now: float) -> list[Frame]:
        """Return the next stream message, behind the answers if there are any; or nothing."""
        return self._frames(1, now)

    def _frames(self, most_bytes: int, now: float) -> list[Frame]:
        frames = []
        due = self._session.next_deadline(now)
        data_of_due = self._session.output(0, due) if due is not None and due < now else []
        for data in (*data_of_due, *self._session.output(most_bytes, now)):
            block = self._out.feed(bytes(data))
            frames += [block.frame(index) for index in range(len(block))]
        return frames

    def push_map(self) -> None:
        """Hear of a new cluster map, as the node's connections do."""
        self._session.map_news.due()

    def due_seconds(self, now: float) -> float | None:
        """Return when the producer would say something by time alone."""
        return self._session.next_deadline(now)

    def close(self) -> None:
        """Close from the client's side."""
        if not self._is_forgotten:
            self._is_forgotten = True
            self._session.forget()
