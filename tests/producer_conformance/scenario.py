"""A recording's scenario: the state to bring our producer into, and before which line.

Seqnos, revisions, CAS values and uuids are the recorded server's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dcp.producer.cluster_settings import ClusterSettings
from dcp.protocol.negotiation import Release
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.versions import Version


@dataclass(frozen=True, slots=True)
class SetUp:
    """The vbucket becomes exactly this, and its streams end, for its state has changed.

    It keeps what it held up to ``keep_up_to``, and then has ``versions``. ``is_held``: by the node
    that is spoken to.
    """

    facts: VbucketFacts
    versions: tuple[Version, ...]
    keep_up_to: int
    is_held: bool


@dataclass(frozen=True, slots=True)
class Write:
    """The next versions come, all at once; perhaps in a checkpoint of their own."""

    versions: tuple[Version, ...]
    checkpoint_begins: bool


@dataclass(frozen=True, slots=True)
class Purge:
    """Tombstones up to a seqno are purged."""

    up_to_seqno: int


@dataclass(frozen=True, slots=True)
class DropCursors:
    """Memory forgets the cursors of the vbucket's streams, as it does when it is short."""


@dataclass(frozen=True, slots=True)
class LearnManifest:
    """The bucket knows a manifest of which no vbucket's stream tells; the same one if not given."""

    uid: int
    manifest: Mapping[str, Any] | None = None


Action = SetUp | Write | Purge | DropCursors | LearnManifest


@dataclass(frozen=True, slots=True)
class Step:
    """What is done to a vbucket before a line of the recording is played."""

    before: int
    vbucket: int
    action: Action


@dataclass(frozen=True, slots=True)
class Scenario:
    """One bucket's part of a recording. ``note`` is for people.

    ``connections`` are the names of those that speak to this bucket; all others where it is None.
    ``users`` are names with passwords; ``wrong_passwords`` the lines of logins with another one.
    ``held`` are the vbuckets of the node that is spoken to (all where it is None).
    ``streams_from_disk`` are the lines of stream requests whose first snapshot came from disk:
    memory keeps everything here. ``unplayed`` are lines that ours is not told of, both ways;
    ``items_left_out_from`` markers behind which the recording has no items; ``younger_features``
    those of HELLO that the server is too old to know; ``release`` is its major and minor version,
    where that decides.
    """

    note: str = ""
    bucket: str = "default"
    vbuckets: int = 1
    users: Mapping[str, str] = field(default_factory=lambda: {"Administrator": "password"})
    connections: frozenset[str] | None = None
    users_without_streams: frozenset[str] = frozenset()
    wrong_passwords: frozenset[int] = frozenset()
    idle_timeout_seconds: float | None = None
    held: frozenset[int] | None = None
    streams_from_disk: frozenset[int] = frozenset()
    items_left_out_from: frozenset[int] = frozenset()
    unplayed: frozenset[int] = frozenset()
    younger_features: frozenset[int] = frozenset()
    release: Release = ClusterSettings().release
    steps: tuple[Step, ...] = ()
