"""The plan of one apply of a replica table: one MERGE, as pure data. No Spark.

The rules that decide it are in `dcp.lake.apply.slice_rules`.
"""

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from dcp.lake.apply.typed_plan import UNTYPED, TypedPlan
from dcp.lake.config.memory import DOCUMENT_BYTES, KIBIBYTE, MEBIBYTE
from dcp.lake.log.log_slice import LogSlice
from dcp.lake.log.slice_keys import Keys
from dcp.printable import number_ranges

TABLE_BYTES_BY_NAMED_KEY: Final = 16 * KIBIBYTE
"""A key that the MERGE names costs about as much as reading so much of its vbuckets does."""


@dataclass(frozen=True, slots=True)
class RowBudget:
    """The driver's memory limits for one apply: row references and document bytes.

    ``rows`` limits references to all changed rows, ``bytes`` the newest row of each key. Beyond
    that Spark's tasks read the rows that are merged.
    """

    rows: int = 20_000
    bytes: int = 16 * MEBIBYTE

    def shared_by(self, applies: int) -> "RowBudget":
        """Return what each of several applies may hold at once."""
        return RowBudget(self.rows // applies, self.bytes // applies)


ROW_BUDGET: Final = RowBudget()


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """One MERGE: which slice of the log it reads, and what it does to which table.

    ``keys`` are those that it touches, none at all if the table is only moved on, or None when they
    are too many to be held; ``names_keys`` says that the MERGE names them. ``rows`` are what is
    merged (`dcp.lake.apply.apply_rows.SOURCE`), or None when that is too much to be held: then it
    is a query, which need not look for the newest row of each key in the vbuckets
    ``without_repeats``. ``base_version`` is the version of the table that the plan was made on, and
    ``since_version`` the one that put it where it stands (an apply, or a RESTORE: the fence counts
    it). ``log_version`` is the version of ``changes`` that is read: what maintenance cleans after
    the plan was made is still there. ``is_first`` says that no commit has changed a row of it so
    far: it is empty. ``typed`` are the typed columns that it writes. ``largest_bytes`` is the size
    of the largest document that it may read.
    """

    table: str
    collection_id: int
    from_round: int
    log_slice: LogSlice
    keys: Keys | None = field(repr=False)
    base_version: int
    since_version: int
    log_version: int
    names_keys: bool = False
    rows: pa.Table | None = field(default=None, repr=False, compare=False)
    without_repeats: frozenset[int] = frozenset()
    is_first: bool = False
    typed: TypedPlan = UNTYPED
    largest_bytes: int = DOCUMENT_BYTES

    @property
    def to_round(self) -> int:
        """The round that the table holds afterwards."""
        return self.log_slice.to_round

    @property
    def vbuckets(self) -> tuple[int, ...]:
        """The vbuckets that it touches, in order."""
        return self.log_slice.vbuckets if self.keys is None else self.keys.vbuckets

    @property
    def method(self) -> str:
        """The join strategy of the MERGE: ``key literals`` or ``hash join``."""
        return "key literals" if self.names_keys else "hash join"

    def __str__(self) -> str:
        """Say in one line what it does."""
        count = "many" if self.keys is None else str(len(self.keys))
        return (
            f"apply {self.table}: round {self.from_round} -> {self.to_round}, {count} changed keys "
            f"in {len(self.vbuckets)} vbuckets, by {self.method}, reading changes from round "
            f"{self.log_slice.first_round}{self._vbuckets_text()}"
        )

    def _vbuckets_text(self) -> str:
        log_slice, parts = self.log_slice, []
        if log_slice.restored:
            oldest = min(log_slice.restored.values())
            parts.append(
                f"vbuckets {number_ranges(log_slice.restored)} go back (oldest version {oldest})"
            )
        if log_slice.replaced:
            parts.append(f"vbuckets {number_ranges(log_slice.replaced)} are replaced")
        if log_slice.cleared:
            parts.append(f"vbuckets {number_ranges(log_slice.cleared)} were flushed or dropped")
        if log_slice.revived:
            parts.append(
                f"of vbuckets {number_ranges(log_slice.revived)} a flush or drop is undone"
            )
        if log_slice.stale:
            parts.append(f"vbuckets {number_ranges(log_slice.stale)} stay stale")
        return "".join(f"; {part}" for part in parts)
