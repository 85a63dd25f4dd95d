"""Our producer, brought into a state and spoken to without sockets: bytes and a time in, bytes out.

With ``played_line.py`` the only module here that knows the producer from inside. Time is the
recording's, so that NOOPs and idle clients need no waiting.
"""

from dataclasses import replace
from typing import Final

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import COMMANDS
from dcp.server.commands.session import Session
from dcp.server.model.manifest import Collection, Scope
from dcp.server.model.versions import Version
from tests.producer_conformance.played_line import Line, drop_cursors
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
                release=scenario.release,
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
        self._bucket: ProducerBucket = self._cluster.bucket
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
                    drop_cursors(self._bucket, connection, connection.streams.of({vbucket}))
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
        changed = self._bucket.changes.collect()
        for connection in list(self._bucket.dcp_connections.values()):
            connection.vbuckets_changed(changed)

    def new_map(self, line: Line) -> None:
        """Let the cluster map have a new revision, which a connection hears of."""
        cluster_map = self._bucket.map
        cluster_map.move(0, cluster_map.owner(0) or _NODE)  # stays: only the revision grows
        line.push_map()

    def connect(self) -> Line:
        """Open a connection."""
        return Line(Session(self._bucket, _NODE, COMMANDS, 0.0))
