"""The history of one vbucket: every version ever written, in seqno order, kept whole.

Seqnos are given without gaps, so that seqno and place in the list determine each other. Each
version knows the seqno that replaced it, which answers both questions put to a history: what did
the vbucket hold at seqno s (versions with seqno <= s < replaced_at), and which versions make a
snapshot of (after, end] with every key at most once (seqno > after, replaced_at > end).

Checkpoints, flushing to disk, compaction and purging have their room beside this file: they decide
which part of the history a stream may still see, not what happened.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dcp.producer.preload import PreloadedSegment
from dcp.producer.versions import Version
from dcp.types import U64_MAX


@dataclass(frozen=True, slots=True)
class Selection:
    """Versions of a snapshot in seqno order: rows of the preloaded segment, then the rest."""

    segment: PreloadedSegment | None
    rows: npt.NDArray[np.int64]
    versions: list[Version]

    def __len__(self) -> int:
        """The number of items."""
        return len(self.rows) + len(self.versions)

    @property
    def first_seqno(self) -> int:
        """The seqno of the first item; the selection must not be empty."""
        if len(self.rows) and self.segment is not None:
            return self.segment.seqno_of(int(self.rows[0]))
        return self.versions[0].seqno


_NO_ROWS: npt.NDArray[np.int64] = np.empty(0, np.int64)


class VbucketHistory:
    """Versions of one vbucket. ``base_seqno`` is the high seqno before the first of them."""

    def __init__(self, vbucket: int, base_seqno: int = 0) -> None:
        self.vbucket = vbucket
        self.base_seqno = base_seqno
        self.segment: PreloadedSegment | None = None
        self._versions: list[Version] = []
        self._newest: dict[bytes, Version] = {}

    @property
    def high_seqno(self) -> int:
        """The newest seqno; ``base_seqno`` while there is none."""
        return self._versions_base + len(self._versions)

    @property
    def _versions_base(self) -> int:
        return self.base_seqno + (len(self.segment) if self.segment else 0)

    def start_at(self, base_seqno: int) -> None:
        """Let seqnos begin after ``base_seqno``; only while nothing was written."""
        if self.high_seqno != self.base_seqno:
            raise ValueError(
                f"vbucket {self.vbucket}: found {self.high_seqno - self.base_seqno} versions, "
                "a base seqno must be set before the first write"
            )
        if not 0 <= base_seqno < U64_MAX:
            raise ValueError(f"base seqno: found {base_seqno}, expected 0 to {U64_MAX - 1}")
        self.base_seqno = base_seqno

    def preload(self, segment: PreloadedSegment) -> None:
        """Take a whole segment as the beginning of the history."""
        if self.high_seqno != self.base_seqno:
            raise ValueError(f"vbucket {self.vbucket}: a segment must come before the first write")
        self.segment = segment

    def append(self, version: Version) -> None:
        """Add the newest version; its seqno must be the next one."""
        if version.seqno != self.high_seqno + 1 or version.seqno >= U64_MAX:
            raise ValueError(
                f"vbucket {self.vbucket}: found seqno {version.seqno}, "
                f"expected {self.high_seqno + 1}"
            )
        older = self._newest.get(version.key)
        if older is not None:
            older.replaced_at = version.seqno
        elif self.segment is not None:
            self.segment.replace(version.key, version.seqno)
        self._newest[version.key] = version
        self._versions.append(version)

    def newest(self, key: bytes) -> Version | None:
        """Return the newest version of ``key``, which may be a deletion."""
        version = self._newest.get(key)
        if version is None and self.segment is not None:
            row = self.segment.row_of(key)
            return None if row is None else self.segment.version(row)
        return version

    def select(self, after: int, end: int) -> Selection:
        """Return the versions of (after, end] that are still the newest of their key at ``end``."""
        segment, rows = self.segment, _NO_ROWS
        if segment is not None and after < self._versions_base:
            rows = segment.rows_between(max(after, self.base_seqno), end)
        base = self._versions_base
        run = self._versions[max(after - base, 0) : max(end - base, 0)]
        return Selection(segment, rows, [v for v in run if v.replaced_at > end])

    def live_at(self, seqno: int) -> Iterator[Version]:
        """Yield what the vbucket held at ``seqno``, deletions left out."""
        held = self.select(0, seqno)
        if held.segment is not None:
            yield from (held.segment.version(int(row)) for row in held.rows)
        yield from (version for version in held.versions if not version.is_deleted)
