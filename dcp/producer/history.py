"""The history of one vbucket: every version of its current branch, in seqno order.

Seqnos are given without gaps, so that seqno and place in the list determine each other. Each
version knows the seqno that replaced it, which answers both questions put to a history: what did
the vbucket hold at seqno s (versions with seqno <= s < replaced_at), and which versions make a
snapshot of (after, end] with every key at most once (seqno > after, replaced_at > end).

A fork cuts the tail off; what the tail had replaced is the newest of its key again. Purging takes
tombstones out of what streams are shown and leaves them here (kv_engine
``docs/dcp/documentation/rollback.md`` on the purge seqno). What is on disk is a distance from the
newest seqno: checkpoints, flushing and compaction have their room beside this file.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dcp.producer.preload import PreloadedSegment
from dcp.producer.versions import NEVER, Version
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
    """Versions of one vbucket. ``base_seqno`` is the high seqno before the first of them.

    ``unpersisted_seqnos``: how many of the newest seqnos are not on disk yet.
    """

    def __init__(
        self,
        vbucket: int,
        base_seqno: int = 0,
        *,
        unpersisted_seqnos: int = 0,
        purge_seqno: int = 0,
    ) -> None:
        self.vbucket = vbucket
        self.base_seqno = base_seqno
        self.unpersisted_seqnos = unpersisted_seqnos
        self._checkpoint_starts: set[int] = set()
        self.on_append: Callable[[Version], None] = lambda _: None
        self._on_disk = 0  # stays there, however many of the newest seqnos are not
        self._purge_floor = purge_seqno
        self._purged: set[int] = set()
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

    @property
    def persisted_seqno(self) -> int:
        """The newest seqno on disk; not below where the history begins or a crash left it."""
        return max(self._on_disk, self.high_seqno - self.unpersisted_seqnos)

    @property
    def purge_seqno(self) -> int:
        """The highest seqno of a purged tombstone; 0 while none was purged."""
        return max(self._purge_floor, max(self._purged, default=0))

    def begin_checkpoint(self) -> None:
        """Let the next write be the first of a checkpoint: its memory marker will say so."""
        self._checkpoint_starts.add(self.high_seqno + 1)

    def begins_checkpoint(self, after: int, end: int) -> bool:
        """Whether a checkpoint was begun in (after, end]."""
        return any(after < seqno <= end for seqno in self._checkpoint_starts)

    def start_at(self, base_seqno: int) -> None:
        """Let seqnos begin after ``base_seqno``; only while nothing was written."""
        if self.high_seqno != self.base_seqno:
            raise ValueError(
                f"vbucket {self.vbucket}: found {self.high_seqno - self.base_seqno} versions, "
                "a base seqno must be set before the first write"
            )
        if not 0 <= base_seqno < U64_MAX:
            raise ValueError(f"base seqno: found {base_seqno}, expected 0 to {U64_MAX - 1}")
        self.base_seqno = self._on_disk = base_seqno

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
        self.on_append(version)

    def cut(self, seqno: int) -> None:
        """Lose every version above ``seqno``; what they had replaced is the newest again.

        A purged tombstone at ``seqno`` is shown again: the newest item is never purged, and the
        copy that goes on had its compaction before it had more.

        Raises:
            ValueError: ``seqno`` lies outside the history.
        """
        if not self.base_seqno <= seqno <= self.high_seqno:
            raise ValueError(
                f"vbucket {self.vbucket}: cut at seqno {seqno}, "
                f"expected {self.base_seqno} to {self.high_seqno}"
            )
        del self._versions[max(seqno - self._versions_base, 0) :]
        if self.segment is not None:
            self.segment = self.segment.cut(seqno)
        self._newest = {v.key: v for v in self._versions if v.replaced_at > seqno}
        for version in self._newest.values():
            version.replaced_at = NEVER
        self._purged = {purged for purged in self._purged if purged < seqno}
        self._on_disk = min(self._on_disk, seqno)

    def restart(self) -> None:
        """Take all that is left for persisted: it was read from disk."""
        self._on_disk = self.high_seqno

    def purge(self, up_to: int) -> int:
        """Hide the tombstones on disk up to a seqno, not the newest item; return how many."""
        last = min(up_to, self.persisted_seqno, self.high_seqno - 1)
        found = {
            v.seqno
            for v in self._versions[: max(last - self._versions_base, 0)]
            if v.is_deleted and v.replaced_at == NEVER
        } - self._purged
        self._purged |= found
        self._on_disk = max(self._on_disk, self.purge_seqno)
        return len(found)

    def is_purged(self, seqno: int) -> bool:
        """Whether the item of that seqno is a purged tombstone."""
        return seqno in self._purged

    def newest(self, key: bytes) -> Version | None:
        """Return the newest version of ``key``, which may be a deletion."""
        version = self._newest.get(key)
        if version is None and self.segment is not None:
            row = self.segment.row_of(key)
            return None if row is None else self.segment.version(row)
        return version

    def first_shown(self, seqno: int) -> int:
        """Return the first seqno from ``seqno`` on that is no purged tombstone."""
        while seqno in self._purged:
            seqno += 1
        return seqno

    def newest_versions(self) -> Iterable[Version]:
        """Return the newest version of every key that was not only preloaded."""
        return self._newest.values()

    def select(self, after: int, end: int) -> Selection:
        """Return the versions of (after, end] that are still the newest of their key at ``end``.

        Purged tombstones are left out.
        """
        segment, rows = self.segment, _NO_ROWS
        if segment is not None and after < self._versions_base:
            rows = segment.rows_between(max(after, self.base_seqno), end)
        base = self._versions_base
        run = self._versions[max(after - base, 0) : max(end - base, 0)]
        newest = [v for v in run if v.replaced_at > end]
        if self._purged:
            newest = [v for v in newest if v.seqno not in self._purged]
        return Selection(segment, rows, newest)

    def live_at(self, seqno: int) -> Iterator[Version]:
        """Yield what the vbucket held at ``seqno``, deletions left out."""
        held = self.select(0, seqno)
        if held.segment is not None:
            yield from (held.segment.version(int(row)) for row in held.rows)
        yield from (version for version in held.versions if not version.is_deleted)
