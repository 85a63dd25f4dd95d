"""Our producer, brought into a state and spoken to without sockets: bytes and a time in, bytes out.

The only module here that knows the producer from inside. Time is the recording's, so that NOOPs and
idle clients need no waiting. ``Line`` is a connection: what the socket's edge
(``dcp/producer/server/accepted_connection.py``) does with a session, step by step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from dcp.errors import FrameError
from dcp.producer.bucket.bucket import Bucket
from dcp.producer.bucket.dcp_connection import DcpConnection
from dcp.producer.commands.commands import COMMANDS
from dcp.producer.commands.session import Session
from dcp.producer.model.manifest import Collection, Scope
from dcp.producer.model.settings import ClusterSettings
from dcp.producer.model.versions import Version
from dcp.producer.server.cluster import ProducerCluster
from dcp.producer.streams.stream import ActiveStream
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from tests.producer_conformance.scenario import (
    Action,
    DropCursors,
    LearnManifest,
    Purge,
    Scenario,
    SetUp,
    Write,
)

_NODE: Final = 0
_OTHER_NODE: Final = 1
"""Has what the recorded server has not."""
_ENDLESS: Final = 2**50
"""Memory keeps all it ever had: a stream that the recorded server served from disk is sent there.
A checkpoint ends where the scenario says that one begins."""
_KEEPER: Final = "recording"
"""The cursor that keeps all in memory."""
_IDLE_SLACK_SECONDS: Final = 2.0
"""A server looks for idle clients now and then only."""


class PlayedProducer:
    """A producer of one node that runs without sockets, in the state of a recorded server."""

    def __init__(self, scenario: Scenario) -> None:
        idle = scenario.idle_timeout_seconds
        self._versions: dict[int, list[Version]] = {}
        self._cluster = ProducerCluster(
            ClusterSettings(
                nodes=2,
                vbuckets=scenario.vbuckets,
                bucket=scenario.bucket,
                users=dict(scenario.users),
                seed=1,
                users_without_streams=scenario.users_without_streams,
                administrators=frozenset(scenario.users),  # who asked and was let is one
                rules="server",
                prepare_extra_bytes=2,
                record_seqnos=False,
                record_branches=False,
                checkpoint_quota_bytes=_ENDLESS,
                checkpoint_items=_ENDLESS,
                clock=lambda: 0.0,
                idle_timeout_seconds=ClusterSettings().idle_timeout_seconds
                if idle is None
                else idle - _IDLE_SLACK_SECONDS,
            )
        )
        self._bucket: Bucket = self._cluster.bucket
        for vbucket in range(scenario.vbuckets):
            is_held = scenario.held is None or vbucket in scenario.held
            self._bucket.map.move(vbucket, _NODE if is_held else _OTHER_NODE)

    def carry_out(self, vbucket: int, action: Action) -> None:
        """Bring a vbucket into the next state; open streams hear of it."""
        match action:
            case SetUp():
                self._set_up(vbucket, action)
            case Write():
                if action.checkpoint_begins:
                    self._bucket.vbuckets[vbucket].data.checkpoints.close_open()
                self._cluster.take_versions(vbucket, action.versions)
                self._versions.setdefault(vbucket, []).extend(action.versions)
            case Purge():
                self._cluster.purge_tombstones(vbucket, action.up_to_seqno)
            case DropCursors():
                for connection in self._bucket.dcp_connections.values():
                    _drop(self._bucket, connection, connection.streams_of({vbucket}))
            case LearnManifest():
                self._learn_manifest(action)
        self.spread()

    def _set_up(self, vbucket: int, action: SetUp) -> None:
        held = self._versions.get(vbucket, ())
        kept = [version for version in held if version.seqno <= action.keep_up_to]
        versions = self._versions[vbucket] = [*kept, *action.versions]
        self._bucket.map.move(vbucket, _NODE if action.is_held else _OTHER_NODE)
        self._cluster.set_up_vbucket(vbucket, action.facts, versions)
        data = self._bucket.vbuckets[vbucket].data
        data.checkpoints.register(_KEEPER, data.base_seqno, droppable=False)

    def _learn_manifest(self, action: LearnManifest) -> None:
        held = self._bucket.collections.current
        if action.uid <= held.uid:
            return
        scopes, collections = held.scopes, held.collections
        if action.manifest is not None:
            named = {int(scope["uid"], 16): scope for scope in action.manifest["scopes"]}
            scopes = {number: Scope(number, scope["name"]) for number, scope in named.items()}
            collections = {
                int(each["uid"], 16): Collection(
                    int(each["uid"], 16), each["name"], number, each.get("maxTTL")
                )
                for number, scope in named.items()
                for each in scope["collections"]
            }
        self._bucket.collections.current = replace(
            held, uid=action.uid, scopes=scopes, collections=collections
        )

    def spread(self) -> None:
        """Wake the streams of what has changed."""
        changed = self._bucket.collect_changes()
        for connection in list(self._bucket.dcp_connections.values()):
            connection.vbuckets_changed(changed)

    def new_map(self, line: "Line") -> None:
        """Let the cluster map have a new revision, which a connection hears of."""
        cluster_map = self._bucket.map
        cluster_map.move(0, cluster_map.owner(0) or _NODE)  # stays: only the revision grows
        line.push_map()

    def connect(self) -> "Line":
        """Open a connection."""
        return Line(Session(self._bucket, _NODE, COMMANDS, 0.0))


def _drop(bucket: Bucket, connection: DcpConnection, streams: Iterable[ActiveStream]) -> None:
    """Take from streams of a connection their cursors: they go on from the disk."""
    for stream in streams:
        data = bucket.vbuckets[stream.vbucket].data
        data.checkpoints.remove(stream.cursor)
        connection.cursors_dropped(data, (stream.cursor,))


class Line:
    """One connection to the producer."""

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
        dcp = self._session.dcp
        if dcp is not None:
            streams = [
                each for each in dcp.streams_of({request.vbucket}) if each.opaque == request.opaque
            ]
            _drop(self._session.bucket, dcp, streams[-1:])

    def next_message_of(self, vbucket: int, stream_id: int | None, now: float) -> Sequence[Frame]:
        """Return what goes out before all stream messages, and one message of a stream; or nothing.

        Which of a connection's streams goes next is the server's own matter.
        """
        dcp = self._session.dcp
        if dcp is None:
            return self.next_message(now)
        wanted = vbucket, stream_id
        others = [one for one in dcp._ready if (one.vbucket, one.stream_id) != wanted]
        for stream in others:
            del dcp._ready[stream]
        found = self.next_message(now)
        dcp._ready.update(dict.fromkeys(others))
        return found

    def answers(self, now: float) -> Sequence[Frame]:
        """Return what goes out before all stream messages: answers, NOOPs, notifications."""
        found: list[Frame] = []
        while more := self._frames(0, now):
            found += more
        return found

    def next_message(self, now: float) -> Sequence[Frame]:
        """Return the next stream message, behind the answers if there are any; or nothing."""
        return self._frames(1, now)

    def _frames(self, most_bytes: int, now: float) -> Sequence[Frame]:
        frames = []
        due = self._session.next_deadline(now)
        data_of_due = self._session.output(0, due) if due is not None and due < now else []
        for data in (*data_of_due, *self._session.output(most_bytes, now)):
            block = self._out.feed(bytes(data))
            frames += [block.frame(index) for index in range(len(block))]
        return frames

    def push_map(self) -> None:
        """Hear of a new cluster map, as the node's connections do."""
        self._session.push_map()

    def due_seconds(self, now: float) -> float | None:
        """Return when the producer would say something by time alone."""
        return self._session.next_deadline(now)

    def close(self) -> None:
        """Close from the client's side."""
        if not self._is_forgotten:
            self._is_forgotten = True
            self._session.forget()
