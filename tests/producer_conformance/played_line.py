"""A connection to our producer without a socket: bytes and a time in, frames out.

It does what the socket's edge (``dcp/server/node/accepted_connection.py``) does with a session,
step by step.
"""

from collections.abc import Iterable, Sequence

from dcp.errors import FrameError
from dcp.server.bucket.assembly import Bucket
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.commands.session import Session
from dcp.server.streams.active_stream import ActiveStream
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter


def drop_cursors(
    bucket: Bucket, connection: DcpConnection, streams: Iterable[ActiveStream]
) -> None:
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
                each for each in dcp.streams.of({request.vbucket}) if each.opaque == request.opaque
            ]
            drop_cursors(self._session.bucket, dcp, streams[-1:])

    def next_message_of(self, vbucket: int, stream_id: int | None, now: float) -> Sequence[Frame]:
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
        self._session.map_notifier.due()

    def due_seconds(self, now: float) -> float | None:
        """Return when the producer would say something by time alone."""
        return self._session.next_deadline(now)

    def close(self) -> None:
        """Close from the client's side."""
        if not self._is_forgotten:
            self._is_forgotten = True
            self._session.forget()
