"""Finds the replicas for which new rounds brought nothing, with one query for all of them.

In a bucket with many collections, few of them change in a round. Planning an apply costs some
queries for each table.
"""

from collections.abc import Sequence, Set
from typing import Final

from dcp.lake.change_log.epochs import changed_collections
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable

ASKED_AT_ONCE: Final = 50
"""The most tables that one pass checks for foreign writes: each check is a request."""


class UpToDateTables:
    """The replicas that are known to have nothing pending, for one driver. Its threads share it.

    A pass checks up to `ASKED_AT_ONCE` tables for foreign writes. If a lake has more, they take
    turns.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """By table: its version, and the round up to which it has nothing pending."""
        self._changed: dict[tuple[int, int], Set[int] | None] = {}
        """The last result of the function `_changed_after`, by its rounds."""
        self._next = 0
        self._asked: Set[ReplicaTable] = frozenset()

    def begin_pass(self, replicas: Sequence[ReplicaTable]) -> None:
        chosen = replicas[self._next : self._next + ASKED_AT_ONCE]
        self._next += len(chosen)
        if self._next >= len(replicas):
            self._next = 0
        self._asked = frozenset(chosen)

    def note(
        self, lake: LakeTables, replica: ReplicaTable, round_number: int, version: int
    ) -> None:
        """Note that a version of a table lacks no row up to a round, and has no stale vbucket.

        If rows of that round wait for the end of their snapshot, some may belong to this table.
        Then it notes nothing.
        """
        states = states_at(lake, round_number).values()
        if all(state.first_incomplete_round is None for state in states):
            self._seen[replica.name] = version, round_number

    def is_up_to_date(self, lake: LakeTables, replica: ReplicaTable, to_round: int) -> bool:
        if replica.name not in self._seen:
            return False
        version, seen_round = self._seen[replica.name]
        if replica in self._asked and history(lake.table(replica.name), 1)[0].version != version:
            return False
        if to_round == seen_round:
            return True
        rounds = seen_round, to_round
        if rounds not in self._changed:
            self._changed = {rounds: _changed_after(lake, *rounds)}
        ids = self._changed[rounds]
        if ids is None or replica.collection_id in ids:
            return False
        self._seen[replica.name] = version, to_round  # the next query then covers fewer rounds
        return True


def _changed_after(lake: LakeTables, after_round: int, to_round: int) -> Set[int] | None:
    """Return the collections that got documents after one round, up to another.

    None: any collection may have. A vbucket was rolled back, or a collection began or ended.
    """
    before, now = states_at(lake, after_round), states_at(lake, to_round)
    for vbucket, state in now.items():
        if (
            vbucket not in before
            or state.epoch != before[vbucket].epoch
            or (state.last_collection_round or 0) > after_round
        ):
            return None
    return changed_collections(lake, after_round, to_round)
