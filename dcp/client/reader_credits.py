"""The credits of one connection, from the socket to the acknowledgement: four accounts of bytes.

    account    taken              released                         when it is full
    socket     read               taken into a frame               the rest is read after that
    frame      of a begun frame   the frame is whole               a longer one is refused before
    handover   received           passed on by the application     the socket is not read
    window     received           acknowledged                     the node sends nothing more

The first three decide here: no read takes more than ``readable_bytes``. What is read leaves the
socket's account as it goes into its frame, be it finished or not: so a frame of any size passes a
small one. ``frame`` cannot get full, since the splitter refuses what is longer than its size. In
``handover`` is what the delivery queue and all behind it hold; it opens again at three quarters. A
node that keeps to the window never fills it, as it is a message larger: so the socket is read, and
NOOPs are answered, however long the application is busy. ``window`` is the node's own account as
we see it: who waits there is the node.

Used by the reader's thread; others may look.
"""

from dcp.client.addresses import NodeAddress
from dcp.client.looks import ConnectionLook, StageLook
from dcp.client.read_limit import ReadLimit
from dcp.client.settings import ConnectionSettings
from dcp.protocol.connection import ClientConnection
from dcp.protocol.credit_queue import CreditQueue
from dcp.protocol.credits import Credits
from dcp.protocol.receive_window import ReceiveWindow


class ReaderCredits:
    """What of one connection's bytes is where."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """Begin with nothing."""
        self._limit = ReadLimit(settings)
        read_bytes, limit_bytes = settings.read_buffer_bytes, self._limit.limit_bytes
        frame_bytes = settings.max_frame_bytes
        window_bytes = settings.window_bytes or settings.unread_limit_bytes
        self.socket = CreditQueue(Credits("socket", read_bytes, 0))
        self.frame = CreditQueue(Credits("frame", frame_bytes, 0))
        self.handover = CreditQueue(Credits("handover", limit_bytes, limit_bytes * 3 // 4))
        self.window = CreditQueue(Credits("window", window_bytes, window_bytes - 1))
        self._charged_bytes = 0
        self._most_window_bytes = settings.window_bytes
        self.overflow_bytes = 0
        """The most by which one message went beyond the window that the node had then."""
        self.unaccounted_bytes = 0
        """What two accounts that must agree differ by: what we hold, and what the window says."""

    @property
    def readable_bytes(self) -> int:
        """How much may be read from the socket at once now; 0: it must wait."""
        return self.socket.account.room if self.handover.account.is_open else 0

    def decoded(self, pending_bytes: int, now: float) -> None:
        """Note that all was taken into frames, ``pending_bytes`` of it into an unfinished one."""
        self.socket.settle(now)
        self.frame.hold(pending_bytes, now)

    def follow(self, window: ReceiveWindow, most_window_bytes: int, now: float) -> None:
        """Note what the window charged and acknowledged since the last time, and its size.

        ``most_window_bytes`` is the largest that the node may have now. Called before each read: so
        what was charged since then came before what is acknowledged now.
        """
        size = window.settings.window_bytes
        if size:
            self.window.account.set_marks(size, size - 1, now)
        self._limit.follow(self.handover.amount, most_window_bytes)
        limit_bytes = self._limit.limit_bytes
        self.handover.account.set_marks(limit_bytes, limit_bytes * 3 // 4, now)
        if window.charged_total != self._charged_bytes:
            self.window.take(window.charged_total - self._charged_bytes, now)
            self._charged_bytes = window.charged_total
            self._note_overflow(most_window_bytes)
        self._most_window_bytes = most_window_bytes
        self.window.hold(window.unacked_bytes if window.is_on else 0, now)
        held_bytes = window.held_bytes + window.forgotten_held_bytes
        self.unaccounted_bytes = self.handover.amount - held_bytes

    def _note_overflow(self, most_window_bytes: int) -> None:
        """Compare what is outstanding to the window that the node had when it sent that."""
        if self._most_window_bytes and most_window_bytes:
            had_bytes = max(self._most_window_bytes, most_window_bytes)
            self.overflow_bytes = max(self.overflow_bytes, self.window.amount - had_bytes)

    def settle(self, now: float) -> None:
        """Give all back: the connection has ended, and what its node counted with it."""
        for queue in (self.socket, self.frame, self.handover, self.window):
            queue.settle(now)

    def look(
        self,
        node: NodeAddress,
        name: str,
        machine: ClientConnection,
        quiet_seconds: float | None,
        now: float,
    ) -> ConnectionLook:
        """Return how the connection stands."""
        window = machine.window
        stages = (self.socket, self.frame, self.handover)
        return ConnectionLook(
            node=node,
            name=name,
            is_ready=machine.is_ready,
            waits_for="" if machine.is_ready else machine.waiting_for,
            window=StageLook.of(self.window.account, now) if window.is_on else None,
            stages=tuple(StageLook.of(each.account, now) for each in stages),
            received_bytes=window.charged_total,
            held_bytes=window.held_bytes + window.forgotten_held_bytes,
            unacked_bytes=window.unacked_bytes,
            released_bytes=window.released_bytes,
            acked_bytes=window.acked_total,
            acks=window.acks,
            window_overflow_bytes=self.overflow_bytes,
            unaccounted_bytes=self.unaccounted_bytes,
            stream_window_bytes=machine.stream_window_bytes,
            full_stream_windows=machine.full_stream_windows,
            quiet_seconds=quiet_seconds,
        )
