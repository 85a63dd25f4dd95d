"""Faults that tests inject: connections cut inside snapshots, refused streams, corrupt frames.

`ClusterMembers` lets nodes die and hang.
"""

from collections.abc import Callable
from enum import Enum
from struct import Struct
from typing import Final

from dcp.wire.vocabulary import MAX_FRAME_BYTES, Status

UNLIMITED_ITEMS: Final = 2**62
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")


class Corruption(Enum):
    """The damage to one item's frame."""

    BAD_MAGIC = "bad magic"
    OVERSIZED = "oversized"
    TRUNCATED = "truncated"
    BAD_EXTRAS = "bad extras"
    GARBAGE = "garbage"
    DUPLICATE = "duplicate"
    SEQNO_ZERO = "seqno zero"
    BEYOND_SNAPSHOT = "beyond snapshot"
    UNKNOWN_OPAQUE = "unknown opaque"


def _patched(offset: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda frame: frame[:offset] + data + frame[offset + len(data) :]


_CORRUPT: Final[dict[Corruption, Callable[[bytes], bytes]]] = {
    Corruption.BAD_MAGIC: _patched(0, b"\x42"),
    Corruption.OVERSIZED: _patched(8, _U32.pack(MAX_FRAME_BYTES + 1)),
    Corruption.TRUNCATED: lambda frame: frame[: len(frame) - 1],
    Corruption.BAD_EXTRAS: _patched(4, b"\x03"),
    Corruption.GARBAGE: lambda frame: bytes((byte * 7 + 13) & 0xFF for byte in frame),
    Corruption.DUPLICATE: lambda frame: frame + frame,
    Corruption.SEQNO_ZERO: _patched(24, _U64.pack(0)),
    Corruption.BEYOND_SNAPSHOT: _patched(24, _U64.pack(2**64 - 2)),
    Corruption.UNKNOWN_OPAQUE: _patched(12, b"\xfe\xfe\xfe\xfe"),
}
_ENDS_CONNECTION: Final = frozenset({Corruption.TRUNCATED})


class Faults:
    """Orders in force, as the ``SendHook`` of a bucket; callers hold the bucket's lock.

    The first client's connection that can carries an order out, once.
    """

    def __init__(self) -> None:
        self._items_to_cut: int | None = None
        self._refusals: dict[int, tuple[Status, int]] = {}
        self._corruption: Corruption | None = None
        self.cuts_done = 0
        self.corruptions_done = 0

    def cut_snapshot_after(self, items: int) -> None:
        """Cut a connection after ``items`` more items, at the next place inside a snapshot."""
        if items < 1:
            raise ValueError(f"cut after items: found {items}, expected at least 1")
        # Inside a snapshot: at least one item was sent and one is missing.
        self._items_to_cut = items

    def refuse_stream(self, vbucket: int, status: Status, times: int = 1) -> None:
        self._refusals[vbucket] = (status, times)

    def corrupt_next_item(self, corruption: Corruption) -> None:
        self._corruption = corruption

    def clear(self) -> None:
        self._items_to_cut = None
        self._refusals.clear()
        self._corruption = None

    @property
    def most_items(self) -> int:
        """Most items that the next batch may hold, so that a fault hits at its place."""
        if self._corruption is not None:
            return 1
        if self._items_to_cut is None:
            return UNLIMITED_ITEMS
        return max(1, self._items_to_cut)

    def refusal(self, vbucket: int) -> Status | None:
        """Return the status to refuse a stream request with, and count it; None: no order."""
        found = self._refusals.get(vbucket)
        if found is None:
            return None
        status, times = found
        if times <= 1:
            del self._refusals[vbucket]
        else:
            self._refusals[vbucket] = (status, times - 1)
        return status

    def sending(
        self, data: bytes | bytearray, items: int, *, is_inside_snapshot: bool
    ) -> tuple[bytes | bytearray, bool]:
        """Return the bytes to send, perhaps corrupted; True cuts the connection after them."""
        data, is_broken = self.corrupted(data)
        is_cut = self._is_cut(items, is_inside_snapshot=is_inside_snapshot)
        return data, is_broken or is_cut

    def _is_cut(self, items: int, *, is_inside_snapshot: bool) -> bool:
        """Count sent items; return True if the connection must be cut here."""
        if self._items_to_cut is None:
            return False
        self._items_to_cut = max(0, self._items_to_cut - items)
        if self._items_to_cut or not is_inside_snapshot:
            return False
        self._items_to_cut = None
        self.cuts_done += 1
        return True

    def corrupted(self, frame: bytes | bytearray) -> tuple[bytes | bytearray, bool]:
        """Return the frame, or its corrupted form, and True if the connection must end after it."""
        corruption, self._corruption = self._corruption, None
        if corruption is None:
            return frame, False
        self.corruptions_done += 1
        return _CORRUPT[corruption](bytes(frame)), corruption in _ENDS_CONNECTION
