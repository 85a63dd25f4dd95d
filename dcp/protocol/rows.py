"""The data rows of one block, stream by stream: which of them come before which control frame.

Rows are never looked at one by one. They are grouped by opaque once; a *run* is what one stream
sent between two of its control frames, and is checked as an array.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp.errors import RemoteProtocolError
from dcp.wire.columns import DataColumns

Column = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Rows of one stream between two of its control frames, in wire order."""

    rows: Column
    seqnos: Column
    vbuckets: Column

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest seqno."""
        return int(self.seqnos.min()), int(self.seqnos.max())

    def check_vbucket(self, vbucket: int) -> None:
        """Raise RemoteProtocolError unless all rows are of this vbucket."""
        wrong = self.vbuckets != vbucket
        if wrong.any():
            raise RemoteProtocolError(
                f"item of another vbucket: found {int(self.vbuckets[int(np.argmax(wrong))])}, "
                f"expected {vbucket}"
            )

    def check_ascending(self) -> None:
        """Raise RemoteProtocolError unless each seqno is above the one before it."""
        bad = self.seqnos[1:] <= self.seqnos[:-1]
        if bad.any():
            at = int(np.argmax(bad))
            raise RemoteProtocolError(
                f"seqno repeated or going backwards: found {int(self.seqnos[at + 1])} "
                f"after {int(self.seqnos[at])}"
            )


@dataclass(slots=True)
class _Group:
    """The part of the grouped rows that is one stream's; what is below ``start`` is taken."""

    start: int
    end: int


class BlockRows:
    """All data rows of a block, handed out run by run."""

    def __init__(self, columns: DataColumns, frames: NDArray[np.int64]) -> None:
        """``frames`` are the rows' frame numbers in the block, ascending."""
        self._columns = columns
        self._dropped: list[Column] = []
        order, self._groups = _by_opaque(columns.opaque)
        self._rows = order
        self._frames = frames[order]
        self._seqnos = columns.seqno[order]
        self._vbuckets = columns.vbucket[order]

    def take_before(self, opaque: int, frame: int | None) -> Run | None:
        """Return the stream's next run, up to frame number ``frame`` (None: up to the end)."""
        group = self._groups.get(opaque)
        if group is None:
            return None
        start, end = group.start, group.end
        if frame is not None:
            end = start + int(np.searchsorted(self._frames[start:end], frame))
        if end == start:
            return None
        group.start = end
        part = slice(start, end)
        return Run(self._rows[part], self._seqnos[part], self._vbuckets[part])

    @property
    def opaques(self) -> list[int]:
        """The streams that have rows here."""
        return list(self._groups)

    def drop(self, run: Run) -> int:
        """Leave these rows out of what is delivered; return how many they are."""
        self._dropped.append(run.rows)
        return len(run.rows)

    def kept(self) -> DataColumns | None:
        """Return the rows to deliver, in wire order; None where there are none."""
        if self._dropped:
            keep = np.ones(len(self._columns), np.bool_)
            keep[np.concatenate(self._dropped)] = False
            rows = np.flatnonzero(keep)
            return self._columns.take(rows) if len(rows) else None
        return self._columns if len(self._columns) else None


def _by_opaque(opaques: NDArray[np.uint32]) -> tuple[Column, dict[int, _Group]]:
    """Return the rows ordered by stream, in wire order within each, and where each stream's are.

    One stable sort; most blocks hold long runs, which it likes.
    """
    size = len(opaques)
    if size == 0 or (opaques == opaques[0]).all():
        groups = {int(opaques[0]): _Group(0, size)} if size else {}
        return np.arange(size, dtype=np.int64), groups
    order = np.argsort(opaques, kind="stable")
    grouped = opaques[order]
    starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1])))
    ends = np.append(starts[1:], size)
    return order, {
        int(grouped[start]): _Group(int(start), int(end))
        for start, end in zip(starts, ends, strict=True)
    }
