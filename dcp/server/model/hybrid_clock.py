from typing import Final

from dcp.types import U64_MAX

_LOGICAL_BITS: Final = 0xFFFF


class HybridClock:
    """Hybrid logical clock for CAS values, which strictly grow.

    A CAS is nanoseconds since 1970; a counter takes its low 16 bits (kv_engine
    ``engines/ep/src/hlc.h``). ``floor`` lets tests get CAS values above 2^63.
    """

    __slots__ = ("_last",)

    def __init__(self, floor: int = 0) -> None:
        self._last = floor

    @property
    def last(self) -> int:
        """Last CAS that was returned, or the floor."""
        return self._last

    def raise_floor(self, floor: int) -> None:
        if not 0 <= floor < U64_MAX:
            raise ValueError(f"cas floor: found {floor}, expected 0 to {U64_MAX - 1}")
        self._last = max(self._last, floor)

    def next(self, now: float) -> int:
        """Return the next CAS at ``now``, in seconds since 1970."""
        wall = int(now * 1_000_000) * 1000 & ~_LOGICAL_BITS
        # If the clock stands or goes back, the counter in the low bits grows instead.
        self._last = max(self._last + 1, wall)
        return self._last
