"""What a transcript shows of a vbucket, each with the line from which it must have been true.

shown            an item, as one connection was shown it (connections see different parts of it)
streamed         a seqno that had been reached, by what a stream showed
listened         lines from and to which a stream's client had all that it had begun to be sent, and
                 which collections it hears of (None: all)
snapshot         a marker, the seqnos behind it that were shown, and where its stream stood
verdict          a stream request and what the server said to it
log, at_least    a failover log; a seqno that the vbucket had reached at least
                 what streams show comes with the line of their request: a client may read it late,
                 when the vbucket has another branch already
exact            a seqno that was the vbucket's newest: nothing can lie between it and what comes
visible          the newest seqno of all that clients may be shown
written          a client's own write, with the CAS and seqno that it was answered
read             a document that a client's own GET was answered
presence         whether there was a document before a client's own request, by the answer
uuid             of the newest branch, by itself: of use where no log is seen
purged           a purge seqno that was told
collection_high  a collection, and the newest seqno that the vbucket has of it
known_collections  one in which a request was not refused for that
dropped          a collection, by a stream that showed nothing else
cursor_dropped   a marker from disk in a stream that was in memory
checkpoints      seqnos at which one began, for a later memory marker than the first says so
states           the states in which the server can have said what it said
ended            a STREAM_END because of a change of state
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dcp.types import FailoverLog
from dcp.wire import messages as m
from dcp.wire.system_event import ManifestEvent
from dcp.wire.vocabulary import VbucketState
from tests.producer_conformance.manifest_news import ManifestNews

StreamKey = tuple[int, int, int]
"""The line of a stream's request, its vbucket and opaque."""
State = VbucketState | None
"""None: the server has no such vbucket."""
ANY_STATE: Final[frozenset[State]] = frozenset({*VbucketState, None}) - {VbucketState.ALIVE}
STREAMABLE: Final[frozenset[State]] = frozenset({VbucketState.ACTIVE, VbucketState.REPLICA})
MISSING: Final[frozenset[State]] = frozenset({None})


class What(Enum):
    """What has a seqno."""

    DOCUMENT = "document"
    SYSTEM_EVENT = "system event"
    PREPARE = "prepare"
    ABORT = "abort"
    HIDDEN = "something that no stream shows"


@dataclass(frozen=True, slots=True)
class Item:
    """What one seqno holds; ``rev`` 0 means the one after that of the older version.

    ``quality`` grows with how much of it the connection is shown.
    ``event`` is what a system event tells, ``message`` the prepare or abort that was shown, or the
    commit that a document is.
    """

    seqno: int
    key: bytes
    what: What = What.DOCUMENT
    collection_id: int = 0
    rev: int = 1
    cas: int = 1
    opcode: int = 0
    value: bytes = b""
    datatype: int = 0
    flags: int = 0
    expiry: int = 0
    delete_time: int = 0
    event: ManifestEvent | None = None
    message: m.Prepare | m.Commit | m.Abort | None = None
    quality: tuple[bool, ...] = ()


@dataclass(slots=True)
class Snapshot:
    """One marker: everything of (after, up_to] that was not shown had been replaced or is hidden.

    ``up_to`` is the end once the snapshot was sent whole, else the last seqno shown. It was taken
    at ``taken_line``: where its stream was asked for, if it is the first one. If it shows
    everything (``is_unfiltered``), nothing visible lay above its end then, though the vbucket may
    have ``stood_at`` a higher seqno. ``collections`` are those of which it is the first, if a
    filter names them: it shows them whole. ``is_legacy``: its client, without Collections, is shown
    the default collection alone.
    """

    line: int
    after: int
    end: int
    up_to: int
    shown: set[int] = field(default_factory=set)
    taken_line: int = 0
    is_unfiltered: bool = False
    collections: frozenset[int] = frozenset()
    stood_at: int = 0
    is_legacy: bool = False
    born: int = 0
    hears: frozenset[int] | None = None
    hears_scope: int | None = None
    is_memory: bool = False

    @property
    def lacks_its_end(self) -> bool:
        """Whether the item at its end was not shown, though its stream is shown that."""
        is_filtered = self.hears is not None or self.hears_scope is not None
        is_left_out = self.is_memory and is_filtered and self.end not in self.shown
        return self.up_to < self.end or is_left_out


@dataclass(frozen=True, slots=True)
class Written:
    """A request that changed a document, on a connection that was recorded: lines [line, answered].

    ``item`` is what it made as far as that can be told, at seqno 0 where that was not told.
    """

    line: int
    opaque: int
    answered: int
    item: Item
    ttl_seconds: int = 0
    is_durable: bool = False

    @property
    def id(self) -> tuple[int, int]:
        """Its line and opaque."""
        return self.line, self.opaque


@dataclass(frozen=True, slots=True)
class Presence:
    """At a line a key had a document, or none."""

    line: int
    opaque: int
    collection_id: int
    key: bytes
    is_there: bool


@dataclass(slots=True)
class VbucketSightings:
    """All about one vbucket; lists are in the order of lines, items by the line they came on."""

    logs: list[tuple[int, FailoverLog]] = field(default_factory=list)
    at_least: list[tuple[int, int]] = field(default_factory=list)
    visible: list[tuple[int, int]] = field(default_factory=list)
    exact: list[tuple[int, int]] = field(default_factory=list)
    purged: list[tuple[int, int]] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    read: list[tuple[int, Item]] = field(default_factory=list)
    presence: list["Presence"] = field(default_factory=list)
    uuids: list[tuple[int, int]] = field(default_factory=list)
    default_high: list[tuple[int, int]] = field(default_factory=list)
    collection_high: list[tuple[int, int, int]] = field(default_factory=list)
    known_collections: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    cursor_dropped: list[int] = field(default_factory=list)
    unpersisted: list[tuple[int, int]] = field(default_factory=list)
    checkpoints: set[int] = field(default_factory=set)
    items: list[tuple[int, Item, int]] = field(default_factory=list)
    streamed: list[tuple[int, int, int]] = field(default_factory=list)
    listened: list[tuple[int, int, int, frozenset[int] | None]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    verdicts: list[tuple[int, m.StreamRequest, int]] = field(default_factory=list)
    states: list[tuple[int, frozenset[State]]] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)

    @property
    def first_line(self) -> int:
        """The first line that tells anything."""
        lines = [line for line, *_ in (*self.logs, *self.at_least, *self.states)]
        lines += [each.line for each in self.written]
        lines += [line for line, _, _ in self.verdicts] + [line for line, _ in self.ended]
        return min(lines, default=0)


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker as a connection got it: of which stream, and where its snapshot ends."""

    line: int
    connection: int
    stream: StreamKey
    stream_id: int | None
    end: int


@dataclass(slots=True)
class Sightings:
    """All that a transcript shows of the server's state.

    ``from_disk`` are the streams whose first snapshot came from disk.
    ``logins`` are user names with the password that let them in; ``idle_timeout_seconds`` is the
    silence after which a client that owed a NOOP's answer was cut off, None if none was.
    ``failed_logins`` are the lines on which those began that were refused; ``without_streams`` the
    users that may not open DCP connections; ``map_pushed`` the lines that bring a new cluster map;
    ``unheard`` line and opaque of controls that are younger than the server, and of its refusals.
    ``unheard_features`` are those that a HELLO asked for in vain, for they are younger, too;
    ``known_maps`` the requests for a cluster map that were answered without one.
    ``known_commands`` are line and opaque of the requests that were not answered UNKNOWN_COMMAND.
    ``manifests`` are the lines on which one was asked for, and what was answered;
    ``manifest_news`` the lines of requests whose answers tell something of one in passing.
    ``markers`` are those of each vbucket, in the order of lines.
    ``stream_lines`` are those of all messages of a vbucket's streams, by connection and stream id.
    ``left_out`` are the lines of markers whose items the recording leaves out.
    ``hides``: something was shown that not every stream is shown (of collections, sync writes).
    """

    vbuckets: dict[int, VbucketSightings] = field(default_factory=dict)
    vbucket_count: int = 0
    from_disk: set[StreamKey] = field(default_factory=set)
    logins: dict[str, str] = field(default_factory=dict)
    buckets: list[str] = field(default_factory=list)
    failed_logins: set[int] = field(default_factory=set)
    without_streams: set[str] = field(default_factory=set)
    map_pushed: set[int] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)
    unheard: set[tuple[int, int]] = field(default_factory=set)
    unheard_features: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    known_maps: set[tuple[int, int]] = field(default_factory=set)
    known_commands: set[tuple[int, int]] = field(default_factory=set)
    manifests: dict[int, bytes] = field(default_factory=dict)
    manifest_news: dict[int, list[ManifestNews]] = field(default_factory=dict)
    markers: dict[int, list[Marker]] = field(default_factory=dict)
    idle_timeout_seconds: float | None = None
    stream_lines: dict[int, dict[tuple[int, int | None], list[tuple[int, StreamKey]]]] = field(
        default_factory=dict
    )
    hides: bool = False

    def vbucket(self, number: int) -> VbucketSightings:
        """What is known of a vbucket, to be added to."""
        return self.vbuckets.setdefault(number, VbucketSightings())


def next_of(seqnos: Sequence[tuple[int, int]], line: int) -> int | None:
    """Return what was said next, from a line on."""
    return next((seqno for seen, seqno in seqnos if seen >= line), None)
