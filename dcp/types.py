"""Values that every layer uses: seqnos, vbucket ids, failover logs, snapshot ranges.

Their constructors reject illegal values, so other code need not check again.
"""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

U16_MAX: Final = 2**16 - 1
U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1

END_OF_TIME: Final = U64_MAX
"""The end seqno of a stream without an end."""

MAX_FAILOVER_ENTRIES: Final = 25
"""The most branches that a server keeps for a vbucket (kv_engine ``max_failover_entries``)."""


def require_unsigned(name: str, value: object, most: int = U64_MAX) -> None:
    """Raise ValueError unless ``value`` is an int in 0..most (no bool, no float)."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{name}: found {value!r}, expected an integer from 0 to {most}")


def vbucket_of(key: bytes, vbucket_count: int) -> int:
    """Return the vbucket that holds ``key`` (without any collection prefix).

    Couchbase's CRC rule: the upper half of the IEEE CRC-32, 15 bits of it, modulo the number of
    vbuckets (kv_engine ``dockey_validator.cc``, gocbcore ``cbcrc.go``).
    """
    return ((crc32(key) >> 16) & 0x7FFF) % vbucket_count


@dataclass(frozen=True, slots=True)
class FailoverEntry:
    """One branch of a vbucket's history: its uuid and the seqno at its beginning."""

    vb_uuid: int
    seqno: int

    def __post_init__(self) -> None:
        require_unsigned("vb_uuid", self.vb_uuid)
        require_unsigned("failover seqno", self.seqno)


@dataclass(frozen=True, slots=True)
class FailoverLog:
    """A vbucket's branches, newest first, as in the answer to a stream request."""

    entries: tuple[FailoverEntry, ...]

    def __post_init__(self) -> None:
        """Reject an empty log and seqnos that grow towards the past."""
        if not self.entries:
            raise ValueError("failover log: found no entry, expected at least one")
        for newer, older in zip(self.entries, self.entries[1:], strict=False):
            if older.seqno > newer.seqno:
                raise ValueError(
                    f"failover log: found seqno {older.seqno} in an older entry than seqno "
                    f"{newer.seqno}, expected seqnos that do not grow towards the past"
                )

    @property
    def current_uuid(self) -> int:
        """The uuid of the newest branch."""
        return self.entries[0].vb_uuid

    def uuid_at(self, seqno: int) -> int:
        """Return the uuid of the branch that holds ``seqno``; 0 at seqno 0, which is on no branch.

        Servers cut logs at their old end (kv_engine keeps 25 entries): a seqno below the oldest
        entry counts as that entry's.
        """
        if seqno == 0:
            return 0
        for entry in self.entries:
            if entry.seqno <= seqno:
                return entry.vb_uuid
        return self.entries[-1].vb_uuid


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """The inclusive bounds of a snapshot, from its marker."""

    start: int
    end: int

    def __post_init__(self) -> None:
        require_unsigned("snapshot start", self.start)
        require_unsigned("snapshot end", self.end)
        if self.start > self.end:
            raise ValueError(f"snapshot: found start {self.start} beyond its end {self.end}")
