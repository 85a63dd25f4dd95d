"""Finds the streams of one connection by vbucket, by stream id, and by a takeover's opaque.

A connection with stream ids has up to 16 Ki streams, and each write, response and STAT looks some
up. So no look-up may visit all streams.
"""

from collections.abc import Iterator, Set

from dcp.server.streams.active_stream import ActiveStream


class StreamRegister:
    def __init__(self) -> None:
        self._by_vbucket: dict[int, dict[int | None, ActiveStream]] = {}
        """By vbucket, then by stream id, which is None on connections without stream ids."""
        self._takeovers: dict[int, ActiveStream] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ActiveStream]:
        """Yield all streams; do not add or remove any meanwhile."""
        return (stream for streams in self._by_vbucket.values() for stream in streams.values())

    def find(self, vbucket: int, stream_id: int | None) -> ActiveStream | None:
        return self._by_vbucket.get(vbucket, {}).get(stream_id)

    def of(self, vbuckets: Set[int]) -> list[ActiveStream]:
        return [
            stream for vbucket in vbuckets for stream in self._by_vbucket.get(vbucket, {}).values()
        ]

    def takeover(self, opaque: int) -> ActiveStream | None:
        return self._takeovers.get(opaque)

    def add(self, stream: ActiveStream) -> None:
        """Add a stream; it replaces one with the same vbucket and id."""
        older = self.find(stream.vbucket, stream.stream_id)
        if older is not None:
            self.remove(older)
        self._by_vbucket.setdefault(stream.vbucket, {})[stream.stream_id] = stream
        self._count += 1
        if stream.takeover is not None:
            self._takeovers[stream.opaque] = stream

    def remove(self, stream: ActiveStream) -> None:
        """Forget a stream, unless another one has replaced it."""
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
        self._by_vbucket.clear()
        self._takeovers.clear()
        self._count = 0
