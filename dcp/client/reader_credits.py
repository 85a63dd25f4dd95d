"""The credits of one connection, from the socket to the acknowledgement: three accounts of bytes.

    account   taken      released                      when it is full
    socket    read       decoded, part by part         a message is larger than a read
    window    received   acknowledged                  the node sends nothing more
    held      received   released by the application   we stop reading

A node that keeps to the window never fills ``held``, which is a message larger; so the socket is
read, and NOOPs are answered, however long the application is busy. Used by the reader's thread;
others may look.
"""

from dcp.client.addresses import NodeAddress
from dcp.client.looks import ConnectionLook, StageLook
from dcp.client.read_limit import ReadLimit
from dcp.client.settings import ConnectionSettings
from dcp.protocol.connection import ClientConnection
from dcp.protocol.credit_queue import CreditQueue
from dcp.protocol.credits import Credits
from dcp.protocol.flow_control import ReceiveWindow


class ReaderCredits:
    """What of one connection's bytes is where."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """Begin with nothing."""
        self._limit = ReadLimit(settings)
        read_bytes, held_bytes = settings.read_buffer_bytes, self._limit.limit_bytes
        window_bytes = settings.window_bytes or settings.unread_limit_bytes
        self.socket = CreditQueue(Credits("socket", read_bytes, read_bytes - 1))
        self.window = CreditQueue(Credits("window", window_bytes, window_bytes - 1))
        self.held = CreditQueue(Credits("held", held_bytes, held_bytes * 3 // 4))
        self._charged_bytes = 0
        self.unaccounted_bytes = 0
        """What two accounts that must agree differ by: what we hold, and what the window says."""

    def decoded(self, pending_bytes: int, now: float) -> None:
        """Note that all was decoded but ``pending_bytes`` of an unfinished message."""
        self.socket.release(self.socket.amount - pending_bytes, now)

    def follow(self, window: ReceiveWindow, most_window_bytes: int, now: float) -> None:
        """Note what the window charged and acknowledged since the last time, and its size.

        ``most_window_bytes`` is the largest that the node may have now.
        """
        size = window.settings.window_bytes
        if size:
            self.window.account.set_marks(size, size - 1, now)
        self._limit.follow(self.held.amount, most_window_bytes)
        limit_bytes = self._limit.limit_bytes
        self.held.account.set_marks(limit_bytes, limit_bytes * 3 // 4, now)
        unacked_bytes = window.unacked_bytes if window.is_on else 0
        self.window.take(window.charged_total - self._charged_bytes, now)
        self.window.take(max(0, unacked_bytes - self.window.amount), now)  # it was off meanwhile
        self.window.release(max(0, self.window.amount - unacked_bytes), now)
        self._charged_bytes = window.charged_total
        held_bytes = window.held_bytes + window.forgotten_held_bytes
        self.unaccounted_bytes = self.held.amount - held_bytes

    def settle(self, now: float) -> None:
        """Give all back: the connection has ended, and what its node counted with it."""
        for queue in (self.socket, self.window, self.held):
            queue.settle(now)

    def look(
        self,
        node: NodeAddress,
        name: str,
        machine: ClientConnection,
        behind: tuple[StageLook, ...],
        quiet_seconds: float | None,
        now: float,
    ) -> ConnectionLook:
        """Return how the connection stands; ``behind`` are the stages behind these."""
        window = machine.window
        return ConnectionLook(
            node=node,
            name=name,
            is_ready=machine.is_ready,
            waits_for="" if machine.is_ready else machine.waiting_for,
            window=StageLook.of(self.window.account, now) if window.is_on else None,
            stages=(StageLook.of(self.socket.account, now), *behind),
            received_bytes=window.charged_total,
            held_bytes=window.held_bytes,
            released_bytes=window.released_bytes,
            acked_bytes=window.acked_total,
            acks=window.acks,
            unaccounted_bytes=self.unaccounted_bytes,
            stream_window_bytes=machine.stream_window_bytes,
            full_stream_windows=machine.full_stream_windows,
            quiet_seconds=quiet_seconds,
        )
