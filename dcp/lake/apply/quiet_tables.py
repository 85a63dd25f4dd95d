"""Finds the replicas for which new rounds brought nothing, with one query for all of them.

Of a bucket with many collections few change in a round. To plan an apply of each of the others
would cost some queries a table.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

from dcp.lake.log.epochs import changed_collections
from dcp.lake.log.round_records import positions_at
from dcp.lake.tables.history import history
from dcp.lake.tables.tables import LakeTables, ReplicaTable


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table version, and the round up to which it has nothing pending."""

    version: int
    round: int


@dataclass(frozen=True, slots=True)
class _Touched:
    """The collections with documents in rounds after one, up to another.

    None: any may have some, since a vbucket was rolled back or a collection began or ended.
    """

    after_round: int
    to_round: int
    collection_ids: Set[int] | None


ASKED_AT_ONCE: Final = 50
"""One look asks so many tables whether somebody else changed them: a request each."""


class QuietTables:
    """Replicas known to have nothing pending, for one driver; shared by its threads.

    A look asks up to `ASKED_AT_ONCE` tables whether somebody else changed them. In a lake with more
    tables they take turns.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._touched = _Touched(0, 0, frozenset())
        self._next = 0
        self._asked: Set[ReplicaTable] = frozenset()

    def begin_look(self, replicas: Sequence[ReplicaTable]) -> None:
        chosen = replicas[self._next : self._next + ASKED_AT_ONCE]
        self._next += len(chosen)
        if self._next >= len(replicas):
            self._next = 0
        self._asked = frozenset(chosen)

    def note(
        self, lake: LakeTables, replica: ReplicaTable, round_number: int, version: int
    ) -> None:
        """Note that a table's version lacks nothing up to a round, and has no stale vbucket.

        If rows of that round wait for the end of their snapshot, some may be this table's: then it
        notes nothing.
        """
        states = positions_at(lake, round_number).values()
        if all(state.first_pending_round is None for state in states):
            self._seen[replica.name] = _Seen(version, round_number)

    def is_quiet(self, lake: LakeTables, replica: ReplicaTable, to_round: int) -> bool:
        seen = self._seen.get(replica.name)
        if seen is None:
            return False
        if replica in self._asked:
            newest = history(lake.table(replica.name), 1)[0]
            if newest.version != seen.version:
                return False
        if to_round == seen.round:
            return True
        touched = self._touched
        if (touched.after_round, touched.to_round) != (seen.round, to_round):
            self._touched = touched = _touched(lake, seen.round, to_round)
        ids = touched.collection_ids
        if ids is None or replica.collection_id in ids:
            return False
        self._seen[replica.name] = _Seen(seen.version, to_round)  # the next look asks for less
        return True


def _touched(lake: LakeTables, after_round: int, to_round: int) -> _Touched:
    before, now = positions_at(lake, after_round), positions_at(lake, to_round)
    for vbucket, state in now.items():
        if (
            vbucket not in before
            or state.epoch != before[vbucket].epoch
            or (state.last_collection_round or 0) > after_round
        ):
            return _Touched(after_round, to_round, None)
    return _Touched(after_round, to_round, changed_collections(lake, after_round, to_round))
