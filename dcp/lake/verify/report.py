"""The report of a verification: as text, as JSON, and as an error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from dcp.errors import DcplakeError, IncompleteRunError, VerifyError
from dcp.lake.rounds.round_plan import LeftOut, left_out_lines
from dcp.printable import Shown, number_ranges
from dcp.records import UNSTORED, Record

DEFAULT_KEYS: Final = 20
"""The default number of differing keys in the report."""


@dataclass(frozen=True, slots=True)
class TableCompared:
    table: str
    version: int
    """The version of the first pass."""
    round: int
    documents: int


@dataclass(frozen=True, slots=True)
class KeyState:
    seqno: int
    cas: int
    deleted: bool = False

    def __str__(self) -> str:
        state = "deleted at " if self.deleted else ""
        return f"{state}seqno {self.seqno} cas {self.cas}"


@dataclass(frozen=True, slots=True)
class Difference(Record):
    """A differing key; a side that lacks it is None."""

    table: str
    vbucket: int
    key: str
    kind: str
    replica: KeyState | None
    source: KeyState | None

    def __str__(self) -> str:
        return (
            f"  {self.table} vbucket {self.vbucket} key {self.key!r}: {self.kind}; "
            f"replica: {self.replica or 'nothing'}; source: {self.source or 'nothing'}"
        )


@dataclass(frozen=True, slots=True)
class VerifyReport(Record, Shown):
    location: str
    lake_id: Annotated[str, "lake"]
    tables: tuple[TableCompared, ...]
    vbuckets: int
    suspects: int
    """Keys that differed in the first pass."""
    counts: Annotated[Mapping[str, int], "differing_by_kind"]
    """All differing keys, by kind."""
    keys: tuple[Difference, ...]
    """The first differing keys."""
    not_compared: tuple[LeftOut, ...]
    dropped: Annotated[tuple[str, ...], "dropped_collections"]
    """Tables of dropped collections, which must be empty; they are compared."""
    kept: Annotated[Mapping[str, frozenset[int]], UNSTORED]
    """Tables of dropped collections that keep rows, with the vbuckets that got the drop."""
    seconds: float

    @property
    def differing(self) -> Annotated[int, "differing"]:
        return sum(self.counts.values())

    @property
    def kept_collections(self) -> Annotated[tuple[str, ...], "kept_collections"]:
        return tuple(self.kept)

    @property
    def result(self) -> Annotated[str, "result"]:
        if self.differing:
            return "different"
        return "incomplete" if self.not_compared else "equal"

    def error(self) -> DcplakeError | None:
        """Return the error that ends the command; None if all is equal."""
        if self.differing:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
            return VerifyError(f"found {self.differing:,} keys that differ ({kinds}), expected 0")
        if self.not_compared:
            which = number_ranges({left.vbucket for left in self.not_compared})
            first = self.not_compared[0]
            return IncompleteRunError(
                f"vbuckets {which} were not compared, the others are equal; "
                f"vbucket {first.vbucket}: {first.reason}: {first.detail}"
            )
        return None

    def __str__(self) -> str:
        lines = [
            f"{each.table}: version {each.version} (round {each.round}), "
            f"{each.documents:,} documents"
            for each in self.tables
        ]
        if not (lines or self.dropped or self.kept):
            lines = ["no replica table yet: nothing to compare"]
        lines += [
            f"{name}: its collection was dropped at the source, so it must be empty"
            for name in self.dropped
        ]
        lines += [
            f"{name}: its collection was dropped at the source; its rows are kept in vbuckets "
            f'{number_ranges(vbuckets)} (the policy was "keep" then) and not compared'
            for name, vbuckets in self.kept.items()
        ]
        told = f"{self.vbuckets} vbuckets compared in {self.seconds:.1f} s"
        if self.suspects:
            told += f", {self.suspects:,} keys looked at twice"
        lines.append(told)
        lines += [str(each) for each in self.keys]
        if (more := self.differing - len(self.keys)) > 0:
            lines.append(f"  … and {more:,} more keys")
        lines += left_out_lines(self.not_compared, "not compared")
        return "\n".join([*lines, self.result])
