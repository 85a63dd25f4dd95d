"""Ranges of seqnos to which a disk log cannot be rolled back, as compaction dropped versions.

A version with seqno a, replaced by b, was current from a to b - 1. After compaction drops it, no
state in that range can be restored. Only the union of all ranges is kept.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

U64s = npt.NDArray[np.uint64]


def no_seqnos() -> U64s:
    return np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class CompactedRanges:
    """Ranges [start, end) of seqnos, ascending and disjoint."""

    starts: U64s = field(default_factory=no_seqnos)
    ends: U64s = field(default_factory=no_seqnos)

    def __len__(self) -> int:
        return len(self.starts)

    def covers(self, seqno: int) -> bool:
        index = int(np.searchsorted(self.starts, np.uint64(seqno), side="right")) - 1
        return index >= 0 and seqno < int(self.ends[index])

    def cover_all(self, start: int, end: int) -> bool:
        """Return True if one range holds all of [start, end)."""
        index = int(np.searchsorted(self.starts, np.uint64(start), side="right")) - 1
        return index >= 0 and end <= int(self.ends[index])

    def merged(self, starts: U64s, ends: U64s) -> "CompactedRanges":
        """Return the union with more ranges, which may overlap and come in any order."""
        starts = np.concatenate((self.starts, starts))
        ends = np.concatenate((self.ends, ends))
        if not len(starts):
            return self
        order = np.argsort(starts)
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        # In order of their starts, a range is apart if it starts above all ends before it.
        apart = np.flatnonzero(starts[1:] > reach[:-1]) + 1
        return CompactedRanges(
            starts[np.concatenate(([0], apart))],
            reach[np.concatenate((apart - 1, [len(starts) - 1]))],
        )

    def above(self, seqno: int) -> "CompactedRanges":
        kept = self.ends > np.uint64(seqno)
        return CompactedRanges(self.starts[kept], self.ends[kept])

    def cut(self, seqno: int) -> "CompactedRanges":
        """Return the ranges that begin at or below ``seqno``, which no range may contain."""
        kept = self.starts <= np.uint64(seqno)
        return CompactedRanges(self.starts[kept], self.ends[kept])
