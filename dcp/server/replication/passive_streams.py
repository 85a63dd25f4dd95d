"""Opens and reopens the passive streams of one connection.

A vbucket has one stream per connection. To replace a stream, this side closes it and waits for the
peer's end of it. If the peer refuses or ends a stream, it is requested again after a wait; the wait
doubles each time, until the peer accepts a stream. A failed takeover stream is not repeated.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dcp.errors import RemoteProtocolError
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.events import (
    Event,
    RollbackOrdered,
    StreamClosed,
    StreamEnded,
    StreamOpened,
    StreamRefused,
    StreamRejected,
)
from dcp.server.replication.passive_stream import PassiveStream, StreamEvent
from dcp.server.vbucket.replica import Replica

FIRST_RETRY_SECONDS: Final = 0.02
LONGEST_RETRY_SECONDS: Final = 1.0


class PassiveStreams:
    """Streams by vbucket; call it with the bucket's lock held."""

    def __init__(
        self, connection: ConsumerConnection, may_open: Callable[[], bool] = lambda: True
    ) -> None:
        """While ``may_open`` returns False, requests are postponed and tried again later."""
        self._connection = connection
        self._may_open = may_open
        self._replicas: dict[int, Replica] = {}
        self._takes_over: frozenset[int] = frozenset()
        self._waiting: set[int] = set()
        """Vbuckets that must not be requested until ``retry_at``."""
        self._wait_seconds = FIRST_RETRY_SECONDS
        self.by_vbucket: dict[int, PassiveStream] = {}
        self.retry_at: float | None = None
        """Time of the next attempt at missing streams; None if none is planned."""

    def by_opaque(self, opaque: int) -> PassiveStream | None:
        """Return the stream that a message belongs to; None if a newer stream has replaced it."""
        vbucket = self._connection.vbucket_of(opaque)
        stream = None if vbucket is None else self.by_vbucket.get(vbucket)
        return stream if stream is not None and stream.opaque == opaque else None

    def follow(
        self, replicas: Mapping[int, Replica], now: float, takes_over: Iterable[int] = ()
    ) -> list[PassiveStream]:
        """Stream into exactly these replicas: open missing streams, close and return the others.

        Streams of the vbuckets in ``takes_over`` are takeover streams.
        """
        self._replicas, self._takes_over = dict(replicas), frozenset(takes_over)
        self._waiting &= replicas.keys()
        streams = self.by_vbucket.values()
        # A new replica of the same vbucket needs a new stream.
        unwanted = [
            each for each in streams if self._replicas.get(each.vbucket) is not each.replica
        ]
        for stream in unwanted:
            stream.end()
            del self.by_vbucket[stream.vbucket]
            self._connection.close_stream(stream.vbucket)
        self._open(self._replicas, now)
        return unwanted

    @property
    def deadline(self) -> float:
        due_at = [self._connection.next_deadline(), self.retry_at]
        return min(at for at in due_at if at is not None)

    def tick(self, now: float) -> None:
        """Run the connection's timers, and request missing streams if their wait is over.

        Raises NodeUnavailableError if the peer is silent for too long, or not ready in time.
        """
        self._connection.tick(now)
        if self.retry_at is not None and now >= self.retry_at:
            self.retry(now)

    def retry(self, now: float) -> None:
        self.retry_at = None
        self._waiting.clear()
        self._open(self._replicas, now)

    def _open(self, vbuckets: Iterable[int], now: float) -> None:
        if not self._connection.is_ready:
            return
        missing = [vbucket for vbucket in vbuckets if self._is_missing(vbucket)]
        if missing and not self._may_open():
            self._retry_later(now)
            return
        for vbucket in missing:
            takes_over = vbucket in self._takes_over
            stream = PassiveStream(self._replicas[vbucket], takes_over=takes_over)
            stream.take_charge()
            self.by_vbucket[vbucket] = stream
            self._ask_for(stream)

    def _is_missing(self, vbucket: int) -> bool:
        is_wanted = vbucket in self._replicas and vbucket not in self._waiting
        is_there = vbucket in self.by_vbucket or self._connection.has_stream(vbucket)
        return is_wanted and not is_there

    def _ask_for(self, stream: PassiveStream) -> None:
        stream.asked(
            self._connection.open_stream(stream.vbucket, stream.position, flags=int(stream.flags))
        )

    def _retry_later(self, now: float) -> None:
        # An attempt that is planned keeps its time, or streams that keep failing would postpone it
        # forever.
        if self.retry_at is None:
            self.retry_at = now + self._wait_seconds
            self._wait_seconds = min(2 * self._wait_seconds, LONGEST_RETRY_SECONDS)

    def filled_by(self, event: Event) -> PassiveStream | None:
        """Return the stream whose replica an event changes; None if it changes none.

        Another stream may fill the replica, as in a takeover.
        """
        if not isinstance(event, StreamEvent):
            return None
        stream = self.by_vbucket.get(event.vbucket)
        return stream if stream is not None and stream.is_in_charge else None

    def take(self, event: Event, now: float) -> None:
        """Pass an event to its stream.

        Raises RemoteProtocolError if the replica rejects the event, or the peer asks for a rollback
        from seqno 0.
        """
        if isinstance(event, StreamClosed):
            self._open([event.vbucket], now)
        if not isinstance(event, StreamEvent):
            return
        stream = self.by_vbucket.get(event.vbucket)
        # The peer sent this event before it got the request to close.
        if stream is None:
            return
        if stream.is_in_charge:
            stream.take(event)
        match event:
            case StreamOpened():
                self._wait_seconds = FIRST_RETRY_SECONDS
            case RollbackOrdered():
                self._rolled_back(stream, event, now)
            case StreamEnded() | StreamRefused() | StreamRejected():
                self._lost(stream, now)

    def _rolled_back(self, stream: PassiveStream, event: RollbackOrdered, now: float) -> None:
        # From seqno 0 there is nothing to roll back, so asking again would loop forever.
        if not event.requested.seqno:
            raise RemoteProtocolError(
                f"vbucket {event.vbucket}: found ROLLBACK as the response to a stream request from "
                "seqno 0, expected a stream"
            )
        if stream.is_in_charge and self._may_open():
            self._ask_for(stream)
        else:
            self._lost(stream, now)

    def _lost(self, stream: PassiveStream, now: float) -> None:
        stream.end()
        del self.by_vbucket[stream.vbucket]
        if stream.takes_over:
            # Only the rebalance knows whether to try a takeover again.
            del self._replicas[stream.vbucket]
        else:
            self._waiting.add(stream.vbucket)
            self._retry_later(now)

    def end(self) -> None:
        for stream in self.by_vbucket.values():
            stream.end()
        self.by_vbucket.clear()
