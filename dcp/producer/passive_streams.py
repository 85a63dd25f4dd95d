"""The passive streams of one connection: which copies are to be filled, and by which streams.

A vbucket has one stream on a connection. Where one was closed and is wanted again, it is asked for
when the peer has ended the old one.
"""

from collections.abc import Callable, Iterable, Mapping

from dcp.producer.passive_stream import PassiveStream, StreamEvent
from dcp.producer.replica_copy import ReplicaCopy
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.events import (
    Event,
    RollbackOrdered,
    StreamClosed,
    StreamEnded,
    StreamRefused,
    StreamRejected,
)


class PassiveStreams:
    """Streams by vbucket; used under the bucket's lock."""

    def __init__(
        self, connection: ConsumerConnection, may_open: Callable[[], bool] = lambda: True
    ) -> None:
        """While ``may_open`` says no, no stream is asked for: ``open_missing`` tells."""
        self._connection = connection
        self._may_open = may_open
        self._copies: dict[int, ReplicaCopy] = {}
        self._takes_over: frozenset[int] = frozenset()
        self.by_vbucket: dict[int, PassiveStream] = {}

    def follow(
        self, copies: Mapping[int, ReplicaCopy], takes_over: Iterable[int] = ()
    ) -> list[PassiveStream]:
        """Want a stream into each of these copies and no other; return those that were closed.

        The streams of ``takes_over`` are to become the vbuckets.
        """
        self._copies, self._takes_over = dict(copies), frozenset(takes_over)
        streams = self.by_vbucket.values()
        unwanted = [each for each in streams if self._copies.get(each.vbucket) is not each.copy]
        for stream in unwanted:
            stream.end()
            del self.by_vbucket[stream.vbucket]
            self._connection.close_stream(stream.vbucket)
        return unwanted

    def open_missing(self, vbuckets: Iterable[int] | None = None) -> bool:
        """Ask for the streams that are wanted and not there, of some vbuckets only or of all.

        Return whether they may be asked for now.
        """
        if not self._connection.is_ready:
            return True
        if not self._may_open():
            return False
        for vbucket in self._copies if vbuckets is None else vbuckets:
            is_there = vbucket in self.by_vbucket or self._connection.has_stream(vbucket)
            if vbucket in self._copies and not is_there:
                takes_over = vbucket in self._takes_over
                stream = PassiveStream(self._copies[vbucket], takes_over=takes_over)
                stream.take_charge()
                self.by_vbucket[vbucket] = stream
                self._ask_for(stream)
        return True

    def _ask_for(self, stream: PassiveStream) -> None:
        stream.opaque = self._connection.open_stream(
            stream.vbucket, stream.position, flags=int(stream.flags)
        )

    def take(self, event: Event) -> PassiveStream | None:
        """Let a stream take what the connection told; return it, None where it is none's.

        One that is over then, or was refused, is not there any more.

        Raises:
            RemoteProtocolError: its copy cannot take it.
        """
        if isinstance(event, StreamClosed):
            self.open_missing([event.vbucket])
        if not isinstance(event, StreamEvent):
            return None
        stream = self.by_vbucket.get(event.vbucket)
        if stream is None:  # of a stream that was closed
            if isinstance(event, StreamEnded):
                self.open_missing([event.vbucket])
            return None
        is_in_charge = stream.is_in_charge
        if is_in_charge:
            stream.take(event)
        if isinstance(event, RollbackOrdered) and is_in_charge:
            self._ask_for(stream)
        elif isinstance(event, StreamEnded | StreamRefused | StreamRejected):
            stream.end()
            del self.by_vbucket[event.vbucket]
        return stream if is_in_charge else None

    def end(self) -> None:
        """Let all streams be over, as the connection is."""
        for stream in self.by_vbucket.values():
            stream.end()
        self.by_vbucket.clear()
