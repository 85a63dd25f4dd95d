"""Keeps a consumer's streams open: requests them, and reacts to refusals, ends and lost nodes.

Everything runs on the application's thread, and nothing here waits. ``act`` does what is due by
time (a retry, a connection, a deadline); ``take`` handles the readers' deliveries. ``reactions.py``
gives the reaction to a refusal or an end. A vbucket without progress for ``node_deadline_seconds``
is reported.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dcp.client.addresses import NodeAddress
from dcp.client.backoff import Backoff
from dcp.client.cluster_map import ClusterMap
from dcp.client.consumer_events import StopReason, VbucketStopped
from dcp.client.delivery import ConnectionEnded, Delivery, DeliveryQueue
from dcp.client.node_links import NodeLink, NodeLinks
from dcp.client.reactions import ENDINGS, REFUSALS, Reaction, end_reason_name
from dcp.client.settings import ConsumerSettings
from dcp.client.vbucket_track import Phase, StreamStart, VbucketTrack
from dcp.errors import (
    BucketError,
    ConfigError,
    DcplakeError,
    LocalProtocolError,
    NoRelayError,
    RemoteProtocolError,
)
from dcp.protocol.events import (
    ClusterConfigReceived,
    Event,
    FailoverLogReceived,
    Items,
    Ready,
    RollbackOrdered,
    SeqnosReceived,
    SnapshotStarted,
    StreamClosed,
    StreamEnded,
    StreamOpened,
    StreamRefused,
    StreamRejected,
    StreamWindowChanged,
    WindowRefused,
)
from dcp.protocol.negotiation import STREAM_WINDOW
from dcp.protocol.refusals import ROLE_CURE, describe_status, error_context
from dcp.types import U16_MAX
from dcp.wire.vocabulary import Status, VbucketState

_LOGGER = logging.getLogger(__name__)

_WINDOW_REFUSED: Final = (
    "%s refuses a window of %d bytes (%s): connections keep those that they have"
)
_STREAM_WINDOWS_REFUSED: Final = (
    "%s refuses windows of single streams (%s): the connection's window holds alone"
)


class StreamKeeper:
    """All vbuckets and connections of one consumer.

    ``reports`` are the consumer's own events, waiting for delivery. ``act_at`` is the time at which
    ``act`` has something to do.
    """

    def __init__(
        self,
        streams: Sequence[StreamStart],
        links: NodeLinks,
        settings: ConsumerSettings,
        backoff: Backoff,
        queue: DeliveryQueue,
        now: float,
    ) -> None:
        self.tracks = {start.vbucket: VbucketTrack.begin(start, now) for start in streams}
        if len(self.tracks) != len(streams):
            raise ValueError("consumer: found a vbucket twice in its streams")
        self.links = links
        self.reports: deque[Event] = deque()
        self.act_at = now
        self._settings = settings
        self._backoff = backoff
        self._queue = queue
        self._is_muted = np.zeros(U16_MAX + 1, np.bool_)
        """By vbucket: nothing more of it is delivered."""
        self._away_seconds = 0.0
        self._was_accepted = False
        """A node has accepted user, password and bucket. Another node that refuses them may be
        starting.
        """
        self._told: set[str] = set()
        """Warnings that were logged."""

    def stop_stream(self, vbucket: int) -> None:
        """End one vbucket. Only ``VbucketStopped`` follows for it; received data is dropped."""
        track = self.tracks[vbucket]
        self._is_muted[vbucket] = True
        if track.phase in (Phase.STREAMING, Phase.REQUESTED) and track.address is not None:
            connection = self.links.link(track.address).connection
            if connection is not None:
                connection.close_stream(vbucket)
                track.phase = Phase.CLOSING
                track.trouble_since = self._attended(monotonic())
                self.act_at = min(self.act_at, self._deadline(track))
                return
        if track.phase not in (Phase.STOPPED, Phase.CLOSING):
            self._stop(track, StopReason.CLOSED, "closed by the application")

    def request_high_seqnos(self, address: NodeAddress) -> bool:
        """Ask a node for its high seqnos over the connection of its streams, if there is one."""
        link = self.links.link(address)
        connection = link.connection
        if connection is None or not link.is_ready:
            return False
        reads_replicas = self._settings.reads_replicas
        state = VbucketState.REPLICA if reads_replicas else VbucketState.ACTIVE
        return self._try(lambda: connection.request_seqnos(state))

    # --- what falls due --------------------------------------------------------------------

    def excuse_absence(self, away_seconds: float) -> None:
        """Exclude from all deadlines the time in which the application did not call ``next``."""
        self._away_seconds += away_seconds

    def _attended(self, now: float) -> float:
        """Return ``now`` on the clock of deadlines, which stops outside ``next``."""
        return now - self._away_seconds

    def act(self, now: float) -> None:
        """Give up, connect, and request streams and the map, as far as each is due."""
        due: dict[NodeAddress, list[VbucketTrack]] = {}
        for track in self.tracks.values():
            if now >= self._deadline(track):  # the same sum as in `act_at`, so rounded alike
                if not self._may_have_answered(track):
                    self._give_up(track, now)
            elif track.phase is Phase.WAITING and now >= track.retry_at:
                if track.address is None:
                    self.links.want_map(now)
                    track.retry_at = now + self._settings.retry_cap_seconds
                else:
                    due.setdefault(track.address, []).append(track)
        for address, tracks in due.items():
            link = self.links.connect(address, now)
            if link.is_ready:
                self._request(link, tracks)
        self.links.refresh_map(now)
        self.act_at = self._next_act_at()

    def _next_act_at(self) -> float:
        at = self.links.due_at
        for track in self.tracks.values():
            at = min(at, self._deadline(track))
            if track.phase is Phase.WAITING:
                at = min(at, self._attempt_at(track))
        return at

    def _deadline(self, track: VbucketTrack) -> float:
        """Return when to give a vbucket up, if the application stays inside ``next``."""
        return track.deadline(self._settings.node_deadline_seconds) + self._away_seconds

    def _attempt_at(self, track: VbucketTrack) -> float:
        if track.address is None:
            return track.retry_at  # asks for a map again, unless one names its node before
        link = self.links.link(track.address)
        if link.is_ready:
            return track.retry_at
        return max(track.retry_at, link.retry_at) if link.connection is None else inf

    def _request(self, link: NodeLink, tracks: list[VbucketTrack]) -> None:
        connection = link.connection
        assert connection is not None
        starts = [each.start for each in tracks]
        reads_replicas = self._settings.reads_replicas
        if self._try(lambda: connection.open_streams(starts, reads_replicas=reads_replicas)):
            for track in tracks:
                track.phase = Phase.REQUESTED

    def _try(self, command: Callable[[], None]) -> bool:
        """Run a command on a connection; False if the connection has just ended.

        Its last entry will report the end. A misuse of the protocol is our bug and must not pass as
        a lost connection.
        """
        try:
            command()
        except LocalProtocolError:
            raise
        except DcplakeError:
            return False
        return True

    def _may_have_answered(self, track: VbucketTrack) -> bool:
        """Return whether answers of the vbucket's node may be queued. They count before a
        verdict.
        """
        connection = self.links.link(track.address).connection if track.address else None
        return self._queue.holds(connection.name if connection else None)

    def _give_up(self, track: VbucketTrack, now: float) -> None:
        link = self.links.link(track.address) if track.address else None
        connection = None if link is None else link.connection
        if track.phase is Phase.REQUESTED and connection is not None:
            connection.close_stream(track.vbucket)
        connects = link is not None and connection is not None and not link.is_ready
        self._stop(track, *track.stop_details(self._attended(now), connects=connects))

    def _stop(self, track: VbucketTrack, reason: StopReason, detail: str) -> None:
        self._end(track)
        self.reports.append(VbucketStopped(track.vbucket, reason, detail))

    def _end(self, track: VbucketTrack) -> None:
        track.phase = Phase.STOPPED
        self._is_muted[track.vbucket] = True

    # --- what arrives ----------------------------------------------------------------------

    def take(self, entry: Delivery | ConnectionEnded, now: float) -> Delivery | None:
        """Handle an entry of the queue; return the part of it that the application gets, if any.

        Raises:
            AuthenticationError, BucketError: every node refuses, or cannot be reached; or a node
                denies access to its streams.
            NoRelayError: a group's tag is set, and the node has no groups.
        """
        link = self.links.by_name(entry.connection_name)
        if link is None:
            return None  # a connection that was given up
        if isinstance(entry, ConnectionEnded):
            self._connection_ended(link, entry.error, now)
            return None
        entry.take()
        positions = {v: at for v, at in entry.positions.items() if not self._is_muted[v]}
        for vbucket, position in positions.items():
            self.tracks[vbucket].advance(position)
        events: list[Event] = []
        for event in entry.events:
            events += self._on(event, link, now)
        if not events:
            entry.release()
            return None
        return replace(entry, events=events, positions=positions)

    def _connection_ended(self, link: NodeLink, error: DcplakeError | None, now: float) -> None:
        if isinstance(error, NoRelayError | LocalProtocolError):
            raise error
        self.links.ended(link, error, now)
        if not self._was_accepted:
            self.links.refuse_if_all_failed(self._needed_nodes())
        self.links.want_map(now)
        reason = StopReason.NODE_UNAVAILABLE
        if isinstance(error, RemoteProtocolError):
            reason = StopReason.PROTOCOL_ERROR
        for track in self.tracks.values():
            if track.address != link.address:
                continue
            if track.phase is Phase.CLOSING:
                self._stop(track, StopReason.CLOSED, "closed by the application")
            elif track.phase is not Phase.STOPPED:
                self._trouble(track, reason, str(error), now, link.retry_at)
        self.act_at = now

    def _needed_nodes(self) -> set[NodeAddress]:
        return {
            each.address
            for each in self.tracks.values()
            if each.address is not None and each.phase not in (Phase.CLOSING, Phase.STOPPED)
        }

    def _trouble(
        self, track: VbucketTrack, reason: StopReason, detail: str, now: float, retry_at: float
    ) -> None:
        attended = self._attended(now)
        track.trouble(attended, reason, detail, stable_seconds=self._settings.retry_cap_seconds)
        track.retry_at = retry_at
        self.act_at = now

    def _on(self, event: Event, link: NodeLink, now: float) -> Sequence[Event]:
        """Handle one event of a connection; return the events for the application."""
        match event:
            case Items():
                return _audible(event, self._is_muted)
            case SeqnosReceived():
                return (event,)
            case Ready():
                link.ready_at = self.act_at = now
                self._was_accepted = True
                link.error = None
                if STREAM_WINDOW in event.refused_controls:
                    self._warn_once(_STREAM_WINDOWS_REFUSED, link.address, STREAM_WINDOW)
                self._adopt(event.cluster_config, link, now)
                return ()
            case ClusterConfigReceived():
                self._adopt(event.config, link, now)
                return ()
            case WindowRefused():
                self._warn_once(_WINDOW_REFUSED, link.address, event.asked_bytes, event.detail)
                return ()
            case StreamWindowChanged():
                if event.status != Status.SUCCESS:
                    self._warn_once(_STREAM_WINDOWS_REFUSED, link.address, STREAM_WINDOW)
                return ()
        track = self.tracks.get(getattr(event, "vbucket", -1))
        if track is None or track.phase is Phase.STOPPED:
            return ()  # the answer to CLOSE_STREAM and the STREAM_END may come together
        return self._on_stream(event, track, link, now)

    def _warn_once(self, text: str, *values: object) -> None:
        """Log a warning, once for all nodes."""
        if text not in self._told:
            self._told.add(text)
            _LOGGER.warning(text, *values)

    def _on_stream(
        self, event: Event, track: VbucketTrack, link: NodeLink, now: float
    ) -> Sequence[Event]:
        """Handle one event of one vbucket; return the events for the application."""
        if track.phase is Phase.CLOSING:
            if isinstance(event, _CLOSED):
                self._stop(track, StopReason.CLOSED, "closed by the application")
            return ()
        match event:
            case StreamOpened():
                track.opened(event.failover_log, self._attended(now))
            case SnapshotStarted() if event.purge_seqno is not None:
                track.purge_seqno = event.purge_seqno  # the next request names it (`purge_filter`)
            case StreamRejected():
                self._stop(track, StopReason.REFUSED, f"{track.address}: {event.detail}")
                return ()
            case StreamRefused():
                self._react(
                    REFUSALS.get(event.status, Reaction.RETRY),
                    track,
                    StopReason.REFUSED,
                    f"stream refused with {_described(event)}",
                    now,
                )
                return ()
            case StreamEnded():
                self._react(
                    ENDINGS.get(event.reason, Reaction.RETRY),
                    track,
                    StopReason.STREAM_ENDED,
                    f"stream ended with {end_reason_name(event.reason)}",
                    now,
                )
                return ()
            case RollbackOrdered():
                return self._begin_rollback(event, track, link)
            case FailoverLogReceived():
                return self._finish_rollback(event, track, now)
        return (event,)

    def _react(
        self, reaction: Reaction, track: VbucketTrack, reason: StopReason, detail: str, now: float
    ) -> None:
        delay_seconds = self._backoff.delay_seconds(track.failures)
        match reaction:
            case Reaction.FINISH:
                self._stop(track, StopReason.FINISHED, detail)
            case Reaction.STOP:
                self._stop(track, reason, f"{track.address}: {detail}")
            case Reaction.FAIL_BUCKET:
                raise BucketError(
                    f"{track.address}: vbucket {track.vbucket}: {detail}; {ROLE_CURE}"
                )
            case Reaction.RETRY:
                self._trouble(track, reason, detail, now, now + delay_seconds)
            case Reaction.REOPEN:
                # At once, but not in a tight loop: only the first time since things went well.
                wait_seconds = delay_seconds if track.failures else 0.0
                self._trouble(track, reason, detail, now, now + wait_seconds)
            case Reaction.REROUTE:
                self._trouble(track, StopReason.NOT_MY_VBUCKET, detail, now, now + delay_seconds)
                self.links.want_map(now)
                if self._settings.reads_replicas:
                    track.address = None  # the node, which may be active now, would not refuse

    def _adopt(self, config: bytes, link: NodeLink, now: float) -> None:
        """Adopt a map. Vbuckets without a stream go to their new owners at once."""
        if not config:
            return  # "you have the newest already", or a server without maps
        try:
            self.links.adopt(config, link.address)
        except (ConfigError, RemoteProtocolError) as error:
            _LOGGER.warning("ignored a cluster map: %s", error)
        cluster_map = self.links.map
        if cluster_map is None:
            return
        for track in self.tracks.values():
            if track.phase is not Phase.WAITING or track.vbucket >= cluster_map.vbucket_count:
                continue
            nodes = self._nodes_of(track.vbucket, cluster_map)
            if nodes and track.address not in nodes:
                track.address = nodes[0]
                track.retry_at = now
        self.act_at = now

    def _nodes_of(self, vbucket: int, cluster_map: ClusterMap) -> Sequence[NodeAddress]:
        """Return the nodes that can stream a vbucket."""
        if self._settings.reads_replicas:
            return cluster_map.replica_nodes(vbucket)
        owner = cluster_map.owner(vbucket)
        return [] if owner is None else [owner]

    def _begin_rollback(
        self, event: RollbackOrdered, track: VbucketTrack, link: NodeLink
    ) -> Sequence[Event]:
        """Withhold the rollback until the server's failover log, which belongs to it, has come."""
        connection = link.connection
        track.phase = Phase.ROLLING_BACK
        track.rollback = event
        self.act_at = 0.0
        if connection is not None:
            self._try(lambda: connection.request_failover_log(track.vbucket))
        return ()

    def _finish_rollback(
        self, event: FailoverLogReceived, track: VbucketTrack, now: float
    ) -> Sequence[Event]:
        if track.phase is not Phase.ROLLING_BACK or track.rollback is None:
            return ()
        if event.failover_log is None:  # an order without its log says too little: ask again
            reaction = REFUSALS.get(event.status, Reaction.RETRY)
            if event.status == Status.SUCCESS:
                reaction = Reaction.STOP
            detail = event.fault or "rolled back, and the failover log is not here any more"
            self._react(reaction, track, StopReason.REFUSED, detail, now)
            return ()
        self._end(track)
        return (track.rollback, event)


_CLOSED: Final = (StreamClosed, StreamEnded, StreamRefused, StreamRejected, RollbackOrdered)
"""Events after which a stream does not exist: it was closed, or ended by itself meanwhile."""


def _audible(items: Items, is_muted: NDArray[np.bool_]) -> Sequence[Event]:
    """Return the rows without those of vbuckets that are closing or stopped."""
    is_dropped = is_muted[items.columns.vbucket]
    if not is_dropped.any():
        return (items,)
    rows = np.flatnonzero(~is_dropped)
    return (Items(items.columns.take(rows)),) if len(rows) else ()


def _described(refused: StreamRefused) -> str:
    words = error_context(refused.body)
    return describe_status(refused.status) + (f" ({words!r})" if words else "")
