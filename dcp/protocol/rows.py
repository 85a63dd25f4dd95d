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


@dataclass(slots=True)
class _Group:
    """The rows of one stream, as indices into the columns, in wire order; ``taken`` are done."""

    rows: NDArray[np.int64]
    frames: NDArray[np.int64]
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one stream between two of its control frames."""

    columns: DataColumns
    rows: NDArray[np.int64]

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest seqno."""
        seqnos = self._seqnos
        return int(seqnos.min()), int(seqnos.max())

    def check_vbucket(self, vbucket: int) -> None:
        """Raise RemoteProtocolError unless all rows are of this vbucket."""
        vbuckets = self.columns.vbucket[self.rows]
        if (vbuckets != vbucket).any():
            wrong = int(vbuckets[int(np.argmax(vbuckets != vbucket))])
            raise RemoteProtocolError(f"item of another vbucket: found {wrong}, expected {vbucket}")

    def check_ascending(self) -> None:
        """Raise RemoteProtocolError unless each seqno is above the one before it."""
        seqnos = self._seqnos
        bad = seqnos[1:] <= seqnos[:-1]
        if bad.any():
            at = int(np.argmax(bad))
            raise RemoteProtocolError(
                f"seqno repeated or going backwards: found {int(seqnos[at + 1])} "
                f"after {int(seqnos[at])}"
            )

    @property
    def _seqnos(self) -> NDArray[Any]:
        return self.columns.seqno[self.rows]


class BlockRows:
    """All data rows of a block, handed out run by run."""

    def __init__(self, columns: DataColumns, frames: NDArray[np.int64]) -> None:
        """``frames`` are the rows' frame numbers in the block, ascending."""
        self._columns = columns
        self._dropped: list[NDArray[np.int64]] = []
        self._groups = {
            opaque: _Group(rows, frames[rows]) for opaque, rows in _by_opaque(columns.opaque)
        }

    def take_before(self, opaque: int, frame: int | None) -> Run | None:
        """Return the stream's next run, up to frame number ``frame`` (None: up to the end)."""
        group = self._groups.get(opaque)
        if group is None:
            return None
        end = len(group.rows)
        if frame is not None:
            end = int(np.searchsorted(group.frames, frame))
        if end == group.taken:
            return None
        run = Run(self._columns, group.rows[group.taken : end])
        group.taken = end
        return run

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


def _by_opaque(opaques: NDArray[np.uint32]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return (opaque, its rows in wire order), by one stable sort; most blocks hold long runs."""
    if len(opaques) == 0:
        return []
    if (opaques == opaques[0]).all():
        return [(int(opaques[0]), np.arange(len(opaques), dtype=np.int64))]
    order = np.argsort(opaques, kind="stable")
    grouped = opaques[order]
    starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1])))
    return [(int(grouped[part[0]]), order[part]) for part in _spans(starts, len(order))]


def _spans(starts: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    ends = np.append(starts[1:], size)
    return [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
