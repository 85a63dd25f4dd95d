"""Applies pending changes to a lake's replica tables and remembers the status of each table."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from dcp.lake.apply.audit import write_audit
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import EMPTY_ROUNDS, ROW_BUDGET, MergePlan, RowBudget
from dcp.lake.apply.merge_planner import plan_erasure, plan_merge
from dcp.lake.apply.slice_reader import SliceReader
from dcp.lake.apply.typed_plan import ContractBook
from dcp.lake.apply.up_to_date_tables import UpToDateTables
from dcp.lake.change_log.applied import replica_status, shown_stale
from dcp.lake.change_log.changes import round_time
from dcp.lake.change_log.erase_request import Erasure
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.change_log.stop_points import reached
from dcp.lake.change_log.touched_keys import count_rows
from dcp.lake.config.settings import ApplySettings, ApplyWhen
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.maintain.compaction import compact_small_files
from dcp.lake.maintain.horizon_guard import HorizonGuard
from dcp.lake.rounds.lake_state import stale_vbuckets
from dcp.lake.rounds.observer import Observer
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.threads import in_thread

_NO_AGE: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Pending:
    rows: int
    table_rows: int
    age_seconds: float
    takes_back: bool = False
    """The apply removes rows that the source lost, or changes stale vbuckets: it never waits."""


def is_apply_due(settings: ApplySettings, pending: Pending) -> bool:
    if pending.takes_back:
        return True
    match settings.when:
        case ApplyWhen.EVERY_ROUND:
            return True
        case ApplyWhen.PENDING_FRACTION:
            return pending.rows >= settings.pending_fraction * pending.table_rows
        case ApplyWhen.AGE:
            return pending.age_seconds >= settings.age_seconds
    return False


def pending_of(
    lake: LakeTables, replica: ReplicaTable, to_round: int, now: datetime | None = None
) -> Pending | None:
    """Return the changes that an apply up to ``to_round`` would publish; None if there are none.

    A row counts once its snapshot is complete, even if an earlier apply passed the row's round.
    ``age_seconds`` belongs to the first pending round. It is infinite if Delta's history has
    forgotten that round: the Delta log keeps twice the horizon.
    """
    status = replica_status(lake, replica)
    log_slice = SliceReader(lake, replica, status).slice_to_publish(to_round)
    if log_slice.undone or log_slice.cleared or log_slice.stale != status.current.stale:
        return Pending(0, 0, 0.0, takes_back=True)
    if not log_slice.has_work:
        return None
    pending_rows, first_round = count_rows(lake.changes, replica.collection_id, log_slice)
    if first_round is None:
        return None
    [counted] = lake.table(replica.name).rows("count(*) AS found", "true")
    time = round_time(lake, first_round, history(lake.changes))
    now = now or datetime.now(UTC)
    age_seconds = _NO_AGE if time is None else (now - time).total_seconds()
    return Pending(pending_rows, counted["found"], age_seconds)


_LOGGER = logging.getLogger(__name__)

TABLES_AT_ONCE: Final = 4
"""The most tables that are applied to at once. Their MERGEs share the cores and driver memory."""


class Applier:
    """Applies pending changes to its replica tables.

    Each MERGE first asks ``may_publish`` (`dcp.lake.quality.gate`). The planning thread calls
    `set_replicas` and `read_statuses`. The applying thread, perhaps another one, calls `apply`.
    """

    def __init__(
        self,
        lake: LakeTables,
        rule: ApplySettings,
        writer_id: str,
        observer: Observer,
        guard: HorizonGuard,
        may_publish: Callable[[LakeTables, MergePlan], bool],
    ) -> None:
        self._lake = lake
        # Each thread needs its own Spark session: the transaction id that fences a MERGE is a
        # setting of the session.
        self._lakes = [lake.beside() for _ in range(TABLES_AT_ONCE)]
        self._rule = rule
        self._contracts = ContractBook(rule.contracts_folder)
        self._writer_id = writer_id
        self._observer = observer
        self._guard = guard
        self._may_publish = may_publish
        # The round of each table that ``may_publish`` refused.
        self._withheld: dict[str, int] = {}
        self._compact_from: dict[str, int] = {}
        """By table, the version from which on it may be time to compact it."""
        self._up_to_date = UpToDateTables()
        self._waiting: deque[ReplicaTable] = deque()
        # Guards writes of `_newest`. Readers need no lock: a write replaces the whole mapping.
        self._lock = threading.Lock()
        self._newest: Mapping[str, AppliedVersion] = {}
        self.replicas: tuple[ReplicaTable, ...] = ()

    @property
    def applied_round(self) -> int:
        """The round that all tables have reached; 0 if a table has had no apply."""
        newest = (self._newest.get(each.name) for each in self.replicas)
        return min((0 if each is None else each.to_round for each in newest), default=0)

    @property
    def stale(self) -> dict[int, int]:
        return stale_vbuckets(self._newest.values())

    def set_replicas(self, replicas: tuple[ReplicaTable, ...]) -> None:
        known = set(self.replicas)
        new = [each for each in replicas if each not in known]
        for each in new:
            self._contracts.name_arrays(self._lake, each)
        self.read_statuses(new)
        self.replicas = replicas

    def read_statuses(
        self, replicas: Iterable[ReplicaTable] | None = None, lake: LakeTables | None = None
    ) -> None:
        """Read the tables' status, and write each audit that a dead driver left out.

        ``lake`` belongs to the calling thread. By default it is the planning thread's.
        """
        lake = lake or self._lake
        with lake.read_once():
            for replica in self.replicas if replicas is None else replicas:
                status = replica_status(lake, replica)
                if status.applied is not None:
                    self._note(status.applied)
                    write_audit(lake, replica, status)

    def reread_statuses(self) -> None:
        """Like `read_statuses`, for a call from the applying thread."""
        self.read_statuses(lake=self._lakes[0])

    def apply(self, to_round: int, *, force: bool) -> list[AppliedVersion]:
        """Apply the pending changes of each due table, up to round ``to_round``.

        ``force`` makes every table due, unless `when` is never. If a table fails, the call raises
        the error after the running applies have ended.
        """
        with self._lake.read_once():
            for replica in self.replicas:
                self._guard.look_at(replica, self._lakes[0])
            if self._rule.when is ApplyWhen.NEVER:
                return []
            self._up_to_date.begin_pass(self.replicas)
            # In one step: if `_is_up_to_date` fails, no table gets into the queue twice.
            self._waiting.extend(
                [each for each in self.replicas if not self._is_up_to_date(each, to_round)]
            )
            lakes = self._lakes[: len(self._waiting)]
            if not lakes:
                return []
            first, *others = lakes
            # The tables in work share the driver's memory limit.
            budget = ROW_BUDGET.shared_by(len(lakes))
            work = partial(self._apply_waiting, to_round, force=force, budget=budget)
            # This thread takes tables from the queue as well.
            beside = [in_thread(partial(work, lake)) for lake in others]
            try:
                made = work(first)
            except Exception:  # a KeyboardInterrupt must not wait for the other threads
                wait(beside)
                raise
            wait(beside)
            made += (version for each in beside for version in each.result())
            if made:
                self._compact(first, CHANGES_TABLE)
            return made

    def _apply_waiting(
        self, to_round: int, lake: LakeTables, *, force: bool, budget: RowBudget
    ) -> list[AppliedVersion]:
        made = []
        while self._waiting:
            try:
                replica = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                break
            try:
                with lake.read_once(), ExitStack() as until_applied:
                    version = self._apply(
                        lake, replica, to_round, budget, until_applied, force=force
                    )
            except BaseException as failure:
                # After a failure, no thread begins another table.
                self.leave_the_rest()
                _LOGGER.debug("%s: %s", replica.name, failure)  # `apply` raises only one of several
                raise
            if version is not None:
                made.append(version)
        return made

    def _is_up_to_date(self, replica: ReplicaTable, to_round: int) -> bool:
        # The quality gate has judged this round; its answer would be the same.
        if self._withheld.get(replica.name) == to_round:
            return True
        if self._rounds_behind(replica, to_round) >= EMPTY_ROUNDS:
            return False
        return self._up_to_date.is_up_to_date(self._lakes[0], replica, to_round)

    def _rounds_behind(self, replica: ReplicaTable, to_round: int) -> int:
        newest = self._newest.get(replica.name)
        return to_round - (0 if newest is None else newest.to_round)

    def _note_up_to_date(
        self, lake: LakeTables, replica: ReplicaTable, to_round: int, version: int
    ) -> None:
        newest = self._newest.get(replica.name)
        if newest is None or not newest.stale:
            self._up_to_date.note(lake, replica, to_round, version)

    def _apply(
        self,
        lake: LakeTables,
        replica: ReplicaTable,
        to_round: int,
        budget: RowBudget,
        until_applied: ExitStack,
        *,
        force: bool,
    ) -> AppliedVersion | None:
        # Read before planning: if somebody writes meanwhile, the noted version is outdated and
        # the next pass looks again.
        seen_version = history(lake.table(replica.name), 1)[0].version
        # Counting pending rows costs queries, so only the rules that need the count pay for it.
        if not force and self._rule.when is not ApplyWhen.EVERY_ROUND:
            pending = pending_of(lake, replica, to_round)
            if pending is not None:
                if not is_apply_due(self._rule, pending):
                    return None
            elif self._rounds_behind(replica, to_round) < EMPTY_ROUNDS:
                self._note_up_to_date(lake, replica, to_round, seen_version)
                return None
        contract = self._contracts.contract_of(lake, replica)
        plan = plan_merge(lake, replica, to_round, budget, contract, until_applied)
        if plan is None:
            self._note_up_to_date(lake, replica, to_round, seen_version)
            return None
        self._contracts.refuse_loss(plan.current.table, plan.typed)
        self._contracts.tell_without_columns(contract, plan.typed)
        if not self._may_publish(lake, plan):
            self._withheld[replica.name] = to_round
            return None
        reached("apply.planned")
        # The audit compares the two newest versions, so it must precede the next apply.
        if self._rounds_behind(replica, plan.current.to_round):  # another driver applied meanwhile
            write_audit(lake, replica, replica_status(lake, replica))
        with lake.store.pool("apply"):
            version = run_apply(lake, plan, self._writer_id)
        self._note(version)
        if version.undone:
            write_audit(lake, replica, replica_status(lake, replica), plan)
        self._observer.applied(version)
        self._compact(lake, replica.name)
        return version

    def has_published(self, replica: ReplicaTable, to_round: int) -> bool:
        """Return whether a table has all that is complete up to a round, and nothing stale."""
        lake = self._lakes[0]
        status = replica_status(lake, replica)
        if shown_stale(status, states_at(lake, to_round)):
            return False
        contract = self._contracts.contract_of(lake, replica)
        plan = plan_merge(lake, replica, to_round, contract=contract)
        return plan is None or (not plan.touched and plan.touched is not None)

    def erase(self, replica: ReplicaTable, to_round: int, erasure: Erasure) -> AppliedVersion:
        """Take documents, or their values, out of a table that `has_published` the round before.

        Raises:
            FencedError, ForeignWriteError, LakeError: as of `run_apply`.
        """
        lake = self._lakes[0]
        contract = self._contracts.contract_of(lake, replica)
        plan = plan_erasure(lake, replica, to_round, erasure, contract)
        self._contracts.refuse_loss(plan.current.table, plan.typed)
        with lake.store.pool("apply"):
            version = run_apply(lake, plan, self._writer_id)
        self._note(version)
        self._observer.applied(version)
        return version

    def _compact(self, lake: LakeTables, table: str) -> None:
        with lake.store.pool("apply"):
            due = compact_small_files(lake, table, self._compact_from.get(table))
            self._compact_from[table] = due

    def _note(self, version: AppliedVersion) -> None:
        with self._lock:
            self._newest = {**self._newest, version.table: version}

    def leave_the_rest(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self._lake.store.end_beside([each.store for each in self._lakes])
