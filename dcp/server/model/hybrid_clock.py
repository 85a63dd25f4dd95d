"""CAS values: a hybrid logical clock of 48 bits of time and 16 logical bits.

A CAS is nanoseconds since 1970 with the low 16 bits replaced by a counter, and never smaller than
one given before (kv_engine ``engines/ep/src/hlc.h``). ``floor`` lifts it for tests that need CAS
values above 2^63.
"""

from typing import Final

from dcp.types import U64_MAX

_LOGICAL_BITS: Final = 0xFFFF


class HybridClock:
    """Gives strictly growing CAS values; time comes in as an argument."""

    __slots__ = ("_last",)

    def __init__(self, floor: int = 0) -> None:
        self._last = floor

    @property
    def last(self) -> int:
        """The last CAS value that was given, or the floor."""
        return self._last

    def raise_floor(self, floor: int) -> None:
        """Let every later CAS be greater than ``floor``."""
        if not 0 <= floor < U64_MAX:
            raise ValueError(f"cas floor: found {floor}, expected 0 to {U64_MAX - 1}")
        self._last = max(self._last, floor)

    def next(self, now: float) -> int:
        """Return the next CAS at ``now`` (seconds since 1970)."""
        wall = int(now * 1_000_000) * 1000 & ~_LOGICAL_BITS
        self._last = max(self._last + 1, wall)
        return self._last
