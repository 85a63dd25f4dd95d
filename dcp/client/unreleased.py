"""What the application holds of one connection's deliveries, and what of it came back.

Deliveries are released from the application's thread, whole or part by part, and the reader thread
collects what came back to give it to the window. A delivery is released once: a second time changes
nothing and is counted in the account of the hand-over, where an operator sees it. What the node
counted is void with its connection; a delivery that is released later changes nothing either, and
is no mistake.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dcp.errors import LocalProtocolError
from dcp.protocol.credits import Credits


@dataclass(slots=True)
class _Held:
    """What is left of one delivery; by stream, too, where streams have windows."""

    frame_bytes: int
    of_streams: dict[int, int]


_NOTHING: Final = _Held(0, {})


class Unreleased:
    """The deliveries by serial. Thread-safe."""

    def __init__(self, account: Credits) -> None:
        """Begin with none; mistakes are counted in ``account``."""
        self._account = account
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        self._serial = 0
        self._released_bytes = 0
        self._released_of_streams: Counter[int] = Counter()
        self._is_void = self._is_told = False

    @property
    def released_bytes(self) -> int:
        """What came back and was not collected."""
        return self._released_bytes

    def must_be_told(self, enough_bytes: int) -> bool:
        """Whether the reader is to be woken up to collect; said once before it does.

        Any of a stream's bytes may be what its window waits for; of the connection's, more than
        ``enough_bytes``.
        """
        with self._lock:
            is_enough = self._released_bytes > enough_bytes or bool(self._released_of_streams)
            was_told, self._is_told = self._is_told, self._is_told or is_enough
            return is_enough and not was_told

    def add(self, frame_bytes: int, of_streams: Mapping[int, int]) -> int:
        """Return the serial of a delivery that goes to the application."""
        with self._lock:
            self._serial += 1
            self._held[self._serial] = _Held(frame_bytes, dict(of_streams))
            return self._serial

    def drop(self, frame_bytes: int, of_streams: Mapping[int, int]) -> None:
        """Take back what goes to nobody."""
        with self._lock:
            self._take_back(frame_bytes, of_streams)

    def release(self, serial: int) -> None:
        """Take back what is left of a delivery."""
        with self._lock:
            held = self._held.pop(serial, None)
            if held is None:
                self._account.count_second_release()
            else:
                self._take_back(held.frame_bytes, held.of_streams)

    def release_part(self, serial: int, frame_bytes: int, of_streams: Mapping[int, int]) -> None:
        """Take back some messages of a delivery; ``release`` follows.

        A stream's window may have been charged for some of its messages only (windows come and go):
        no more than that is taken back for it.

        Raises:
            LocalProtocolError: it is more than is left.
        """
        with self._lock:
            held = self._held.get(serial, _NOTHING)
            if not 0 <= frame_bytes <= held.frame_bytes:
                self._account.count_second_release()
                raise LocalProtocolError(
                    f"release_part: delivery {serial}: found {frame_bytes} bytes, expected 0 to "
                    f"{held.frame_bytes} (what is left)"
                )
            held.frame_bytes -= frame_bytes
            parts = {
                opaque: min(part, held.of_streams[opaque])
                for opaque, part in of_streams.items()
                if held.of_streams.get(opaque)
            }
            for opaque, part in parts.items():
                held.of_streams[opaque] -= part
            self._take_back(frame_bytes, parts)

    def collect(self) -> tuple[int, Counter[int]]:
        """Return what came back since the last time, in all and by stream."""
        with self._lock:
            found = self._released_bytes, self._released_of_streams
            self._released_bytes, self._released_of_streams = 0, Counter()
            self._is_told = False
            return found

    def end(self) -> None:
        """Note that the connection has ended: what comes back is given to nobody."""
        with self._lock:
            self._is_void = True
            self._released_bytes, self._released_of_streams = 0, Counter()

    def _take_back(self, frame_bytes: int, of_streams: Mapping[int, int]) -> None:
        if not self._is_void:
            self._released_bytes += frame_bytes
            self._released_of_streams.update(of_streams)
