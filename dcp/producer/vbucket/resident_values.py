"""Evicts values that are on disk from memory, least recently used first.

    eviction starts   at 85 % of the memory quota
    eviction stops    at 75 %

Key and metadata of every document stay (value eviction); the value that was not used for longest
goes first. kv_engine evicts the least frequently used ones, and took the not recently used ones
before that (``docs/HiFi_MFU_eviction_policy.md``; marks: ``engines/ep/configuration.json``,
mem_high_wat_percent, mem_low_wat_percent). What is not on disk yet is never here.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dcp.producer.model.counters import Counters
from dcp.producer.model.versions import Version

UPPER_MARK_PERCENT: Final = 85
LOWER_MARK_PERCENT: Final = 75

Evict = Callable[[Version], None]
"""Lets whoever holds a version hold it without its value."""


class EvictedVersion(Version):
    """A version whose value is on disk only; all else is in memory."""

    __slots__ = ()

    @classmethod
    def of(cls, version: Version) -> "EvictedVersion":
        """Return a version without its value."""
        evicted = cls.__new__(cls)
        for name in _KEPT:
            setattr(evicted, name, getattr(version, name))
        evicted.value = b""
        evicted._wire = _NO_FRAMES
        return evicted

    def wire(self, flavour: int) -> tuple[bytes, bytes]:
        """Raise AssertionError: frames are made of what is in checkpoints or on disk."""
        raise AssertionError(f"seqno {self.seqno}: found no value for a frame of flavour {flavour}")


_KEPT: Final = sorted(set(Version.__slots__) - {"value", "_wire"})
_NO_FRAMES: Final[dict[int, tuple[bytes, bytes]]] = {}


class ResidentValues:
    """The resident values of all vbuckets of a bucket, least recently used first."""

    def __init__(self, quota_bytes: int, counters: Counters) -> None:
        self._quota_bytes = quota_bytes
        self._counters = counters
        self._owners: OrderedDict[Version, Evict] = OrderedDict()
        self.memory_bytes = 0

    def add(self, version: Version, evict: Evict) -> None:
        """Add a value that is on disk; others, or itself, are evicted above the mark."""
        if version not in self._owners:
            self.memory_bytes += version.size_bytes
        self._owners[version] = evict
        if self.memory_bytes * 100 >= self._quota_bytes * UPPER_MARK_PERCENT:
            self._recover()

    def add_read(self, version: Version, evict: Evict) -> None:
        """Take a value that was read back."""
        self._counters.values_read += 1
        self.add(version, evict)

    def use(self, version: Version) -> None:
        """Note that a value was used, if it is here."""
        if version in self._owners:
            self._owners.move_to_end(version)

    def forget(self, version: Version) -> None:
        """Forget a value that is nobody's newest any more."""
        if self._owners.pop(version, None) is not None:
            self.memory_bytes -= version.size_bytes

    def _recover(self) -> None:
        while self.memory_bytes * 100 > self._quota_bytes * LOWER_MARK_PERCENT:
            version, evict = next(iter(self._owners.items()))
            self.forget(version)
            evict(version)
            self._counters.values_evicted += 1
