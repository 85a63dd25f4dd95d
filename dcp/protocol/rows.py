"""Splits the data rows of a block into runs: rows of one stream between two of its control frames.

Rows are grouped by opaque and checked together, as arrays, never one by one.
"""

import numpy as np
from numpy.typing import NDArray

from dcp.errors import RemoteProtocolError
from dcp.wire.columns import Column, DataColumns


class RowRun:
    """Rows of one stream between two of its control frames, in wire order."""

    __slots__ = ("_is_uniform", "frames", "rows", "seqnos", "vbuckets")

    def __init__(
        self, rows: Column, frames: Column, seqnos: Column, vbuckets: Column, *, is_uniform: bool
    ) -> None:
        """``rows`` are row numbers, ``frames`` frame numbers in the block.

        ``is_uniform`` says that seqnos are known to ascend and all vbuckets to be equal.
        """
        self.rows = rows
        self.frames = frames
        self.seqnos = seqnos
        self.vbuckets = vbuckets
        self._is_uniform = is_uniform

    @property
    def bounds(self) -> tuple[int, int]:
        if self._is_uniform:
            return int(self.seqnos[0]), int(self.seqnos[-1])
        return int(self.seqnos.min()), int(self.seqnos.max())

    def check_vbucket(self, vbucket: int) -> None:
        """Raise RemoteProtocolError unless all rows have this vbucket."""
        if self._is_uniform and self.vbuckets[0] == vbucket:
            return
        wrong = self.vbuckets != vbucket
        if wrong.any():
            raise RemoteProtocolError(
                f"item of another vbucket: found {int(self.vbuckets[int(np.argmax(wrong))])}, "
                f"expected {vbucket}"
            )

    def check_ascending(self) -> None:
        """Raise RemoteProtocolError unless each seqno is above the previous one."""
        if self._is_uniform:
            return
        bad = self.seqnos[1:] <= self.seqnos[:-1]
        if bad.any():
            at = int(np.argmax(bad))
            raise RemoteProtocolError(
                f"seqno repeated or going backwards: found {int(self.seqnos[at + 1])} "
                f"after {int(self.seqnos[at])}"
            )


class BlockRows:
    """All data rows of a block, run by run."""

    def __init__(self, columns: DataColumns, frames: NDArray[np.int64]) -> None:
        """``frames`` are the rows' frame numbers in the block, ascending."""
        self._columns = columns
        self._dropped: list[Column] = []
        order, starts = _by_opaque(columns.opaque)
        ends = np.append(starts[1:], len(order))[: len(starts)]
        streams = columns.opaque[order[starts]].tolist()
        self._left = dict(
            zip(streams, zip(starts.tolist(), ends.tolist(), strict=True), strict=True)
        )
        """By stream: the bounds of its grouped rows that are not taken yet."""
        self._rows = order
        self._frames = frames[order]
        self._seqnos = columns.seqno[order]
        self._vbuckets = columns.vbucket[order]
        self._is_uniform = _is_uniform(self._seqnos, self._vbuckets, starts)

    def take_before(self, opaque: int, frame: int | None) -> RowRun | None:
        """Return the stream's next run, up to frame number ``frame``; None: up to the end."""
        start, last = self._left.get(opaque, (0, 0))
        end = last
        if frame is not None:
            end = start + int(np.searchsorted(self._frames[start:end], frame))
        if end == start:
            return None
        self._left[opaque] = end, last
        part = slice(start, end)
        return RowRun(
            self._rows[part],
            self._frames[part],
            self._seqnos[part],
            self._vbuckets[part],
            is_uniform=self._is_uniform,
        )

    @property
    def opaques(self) -> list[int]:
        return list(self._left)

    def drop(self, run: RowRun) -> int:
        """Leave these rows out of ``kept``; return their number."""
        self._dropped.append(run.rows)
        return len(run.rows)

    def kept(self) -> DataColumns | None:
        """Return the rows to deliver, in wire order; None if there are none."""
        if self._dropped:
            keep = np.ones(len(self._columns), np.bool_)
            keep[np.concatenate(self._dropped)] = False
            rows = np.flatnonzero(keep)
            return self._columns.take(rows) if len(rows) else None
        return self._columns if len(self._columns) else None


def _by_opaque(opaques: NDArray[np.uint32]) -> tuple[Column, Column]:
    """Return the rows ordered by stream, in wire order within each, and each stream's first
    index.
    """
    size = len(opaques)
    if size == 0 or (opaques == opaques[0]).all():
        return np.arange(size, dtype=np.int64), np.arange(min(size, 1), dtype=np.int64)
    # A stable sort is fast here: most blocks hold long runs.
    order = np.argsort(opaques, kind="stable")
    grouped = opaques[order]
    return order, np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1])))


def _is_uniform(seqnos: Column, vbuckets: Column, starts: Column) -> bool:
    """Return whether each stream's rows have one vbucket and ascending seqnos."""
    # One check for all streams: a block may have rows of hundreds.
    bad = (seqnos[1:] <= seqnos[:-1]) | (vbuckets[1:] != vbuckets[:-1])
    # Neighbours of different streams need no order.
    bad[starts[1:] - 1] = False
    return not bad.any()
