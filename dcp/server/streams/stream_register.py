"""Indexes the streams of one connection: by vbucket and id, by vbucket, and by a takeover's opaque.

A connection with stream ids has up to 16 Ki streams, and each write, answer frame and STAT asks for
some of them: none of these looks goes over all streams.
"""

from collections.abc import Iterator, Set

from dcp.server.streams.stream import ActiveStream


class StreamRegister:
    """Streams by vbucket and stream id, which is None on connections without stream ids."""

    def __init__(self) -> None:
        self._by_vbucket: dict[int, dict[int | None, ActiveStream]] = {}
        self._takeovers: dict[int, ActiveStream] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of streams."""
        return self._count

    def __iter__(self) -> Iterator[ActiveStream]:
        """Yield all streams; none may come or go meanwhile."""
        return (stream for streams in self._by_vbucket.values() for stream in streams.values())

    def find(self, vbucket: int, stream_id: int | None) -> ActiveStream | None:
        """Return the stream of a vbucket with this id, if there is one."""
        return self._by_vbucket.get(vbucket, {}).get(stream_id)

    def of(self, vbuckets: Set[int]) -> list[ActiveStream]:
        """Return all streams of these vbuckets."""
        return [
            stream for vbucket in vbuckets for stream in self._by_vbucket.get(vbucket, {}).values()
        ]

    def takeover(self, opaque: int) -> ActiveStream | None:
        """Return the newest takeover stream with this opaque."""
        return self._takeovers.get(opaque)

    def add(self, stream: ActiveStream) -> None:
        """Take a stream, in place of the one of that vbucket and id."""
        older = self.find(stream.vbucket, stream.stream_id)
        if older is not None:
            self.remove(older)
        self._by_vbucket.setdefault(stream.vbucket, {})[stream.stream_id] = stream
        self._count += 1
        if stream.takeover is not None:
            self._takeovers[stream.opaque] = stream

    def remove(self, stream: ActiveStream) -> None:
        """Forget a stream, if it is there: another one may have taken its place."""
        streams = self._by_vbucket.get(stream.vbucket, {})
        if streams.get(stream.stream_id) is not stream:
            return
        del streams[stream.stream_id]
        self._count -= 1
        if not streams:
            del self._by_vbucket[stream.vbucket]
        if self._takeovers.get(stream.opaque) is stream:
            del self._takeovers[stream.opaque]

    def clear(self) -> None:
        """Forget all streams."""
        self._by_vbucket.clear()
        self._takeovers.clear()
        self._count = 0
