"""A lake in memory: the rows of ``changes`` as dicts, replicas as dicts by version. No JVM.

What is planned is planned by the product's own code; this here carries it out, and is written to be
read: an apply is a few loops over rows.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dcp.lake.apply.slice_rules import slice_between
from dcp.lake.config.settings import Settings
from dcp.lake.log.log_slice import (
    EMPTY_TABLE,
    CollectionEvent,
    HeldVersion,
    LogSlice,
    Role,
    Undo,
)
from dcp.lake.receive.receive import TaskReceiver
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.receive.stop_policy import TaskBudget
from dcp.lake.rounds.planning import LakePosition, plan_round
from dcp.lake.rounds.rollback_plan import BlockedRollback, RollbackPolicy, plan_rollback
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.tables.epochs import Fork, begun_anew, is_live
from dcp.lake.tables.schema import CHANGES, ITEM_KINDS
from dcp.lake.tables.vbucket_state import VbucketProgress, states_from_rows

Row = dict[str, Any]
Place = tuple[int, str]
"""A vbucket and a key."""


@dataclass(frozen=True)
class Version:
    """A version of the replica: what it holds, and the rows."""

    held: HeldVersion
    rows: Mapping[Place, Row]
    undone: tuple[Undo, ...] = ()
    revived: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()


class MemoryLake:
    """One replica and its log."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.states_at: dict[int, dict[int, VbucketProgress]] = {0: {}}
        self.versions = [Version(HeldVersion(0, 0), {})]
        self.unreadable: set[int] = set()
        self.cleaned_round = 0

    # --- rounds

    @property
    def round(self) -> int:
        return max(self.states_at)

    @property
    def states(self) -> dict[int, VbucketProgress]:
        return self.states_at[self.round]

    def append(self, rows: Iterable[Row]) -> None:
        """Commit the next round."""
        added = list(rows)
        states = states_from_rows(row for row in added if row["kind"] == "position")
        self.states_at[self.round + 1] = states
        self.rows += added

    def position(self, policy: RollbackPolicy) -> LakePosition:
        """Where the lake stands, with the epochs that must begin."""
        epoch_starts: dict[int, VbucketProgress | BlockedRollback] = {}
        stale = self.versions[-1].held.stale
        begun = begun_anew(stale, self.forks(0, self.round, stale), self.cleaned_round)
        for vbucket, state in self.states.items():
            if state.order is not None:
                epoch_starts[vbucket] = plan_rollback(state, self.live_ends(state), policy)
            if vbucket in stale and vbucket not in begun:
                epoch_starts[vbucket] = state.beginning_epoch(0, 0)
        return LakePosition("0123456789abcdef", self.round, self.states, epoch_starts)

    def live_ends(self, state: VbucketProgress) -> list[int]:
        forks = self.forks(0, self.round, [state.vbucket])
        return [
            int(row["seqno"])
            for row in self.rows
            if row["kind"] == "complete"
            and row["vbucket"] == state.vbucket
            and is_live(row["epoch"], int(row["seqno"]), state.epoch, forks)
        ]

    # --- what others do to a lake

    def restore(self, version: int) -> None:
        """Take the table back to an older version of it, as RESTORE does."""
        older = self.versions[version]
        held = replace(older.held, version=len(self.versions))
        self.versions.append(Version(held, older.rows))

    def drop_table(self) -> None:
        """Let the table be gone, and made anew, without rows and without a past."""
        self.unreadable.update(range(len(self.versions)))
        self.versions.append(Version(HeldVersion(len(self.versions), 0), {}))

    def clean(self, version: int) -> None:
        """Remove what no rollback needs while ``version`` is the one at the horizon.

        The rule is the product's (`dcp.lake.maintain.cleaning`): versions before it are gone, rows
        that it and all later ones hold leave the log.
        """
        kept = self.versions[version:]
        if any(each.held.stale for each in kept) or min(each.held.round for each in kept) == 0:
            return
        self.unreadable.update(range(version))
        oldest = min(each.held.round for each in kept)
        judges = [self.states_at[number] for number in (oldest, kept[0].held.round)]
        bounds = {
            vb: (
                min(each[vb].epoch for each in judges),
                min(each[vb].complete_seqno for each in judges),
            )
            for vb in judges[0]
        }
        self.rows = [
            row
            for row in self.rows
            if row["kind"] not in ITEM_KINDS
            or row["round"] > oldest
            or row["epoch"] > bounds[row["vbucket"]][0]
            or row["seqno"] > bounds[row["vbucket"]][1]
        ]
        self.cleaned_round = max(self.cleaned_round, oldest)

    # --- what a decision asks (ReplicaFacts)

    def states_of(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketProgress]]:
        return {number: self.states_at[number] for number in rounds}

    def forks(self, after_round: int, to_round: int, vbuckets: Collection[int]) -> list[Fork]:
        found = [
            Fork(row["vbucket"], row["epoch"], int(row["seqno"]), row["round"])
            for row in self.rows
            if row["kind"] == "rollback"
            and row["seqno"] is not None
            and after_round < row["round"] <= to_round
            and row["vbucket"] in vbuckets
        ]
        return sorted(found, key=lambda fork: (fork.vbucket, fork.epoch))

    # --- applies

    def log_slice(self, to_round: int) -> LogSlice:
        return slice_between(self.versions[-1].held, to_round, _Facts(self))

    def apply(self, to_round: int, *, is_moved_on: bool = False) -> Version | None:
        """Bring the replica to a round; None where nothing is to be done for it.

        ``is_moved_on`` commits also where no row changes.
        """
        newest = self.versions[-1]
        if newest.held.round >= to_round:
            return None
        log_slice = self.log_slice(to_round)
        rows = self._merged(log_slice)
        stays = rows == newest.rows and log_slice.stale == newest.held.stale
        if stays and not log_slice.undone and not is_moved_on:
            return None
        held = HeldVersion(newest.held.version + 1, to_round, dict(log_slice.stale))
        made = Version(held, rows, log_slice.undone, log_slice.revived, log_slice.cleared)
        self.versions.append(made)
        return self.versions[-1]

    def _merged(self, log_slice: LogSlice) -> dict[Place, Row]:
        merged = dict(self.versions[-1].rows)
        newest: dict[Place, Row] = {}
        touched: set[Place] = set()
        for row in self.rows:
            if row["kind"] not in ITEM_KINDS:
                continue
            if not log_slice.first_round <= row["round"] <= log_slice.to_round:
                continue
            place = (row["vbucket"], row["key"])
            for each in log_slice.ranges:
                if (each.vbucket, each.epoch) != (row["vbucket"], row["epoch"]):
                    continue
                if not each.low < row["seqno"] <= each.high:
                    continue
                if each.role is not Role.KEPT:
                    touched.add(place)
                if each.role is not Role.UNDONE and (
                    place not in newest or newest[place]["seqno"] < row["seqno"]
                ):
                    newest[place] = row
        touched |= {place for place in merged if place[0] in log_slice.emptied}
        for vbucket in log_slice.revived:
            base = self.versions[log_slice.restored[vbucket]]
            touched |= {place for place in base.rows if place[0] == vbucket}
        for place in touched:
            found = newest.get(place) or self._old_row(log_slice, place)
            if found is not None and found["kind"] == "mutation":
                merged[place] = found
            else:
                merged.pop(place, None)
        return merged

    def _old_row(self, log_slice: LogSlice, place: Place) -> Row | None:
        version = log_slice.restored.get(place[0])
        if version in (None, EMPTY_TABLE):
            return None
        assert version not in self.unreadable
        return self.versions[version].rows.get(place)


class _Facts:
    """What `slice_between` asks, of a `MemoryLake`."""

    def __init__(self, lake: MemoryLake) -> None:
        self._lake = lake
        self.cleaned_round = lake.cleaned_round

    def states(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketProgress]]:
        return self._lake.states_of(rounds)

    def forks(self, after_round: int, to_round: int, vbuckets: Collection[int]) -> Sequence[Fork]:
        return self._lake.forks(after_round, to_round, vbuckets)

    def collection_events(
        self, from_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[CollectionEvent]:
        return [
            CollectionEvent(
                row["vbucket"],
                row["epoch"],
                int(row["seqno"]),
                row["round"],
                keeps=row["collection_id"] is None,
                brings_anew=row["kind"] == "backfill",
            )
            for row in self._lake.rows
            if row["kind"] in ("system_event", "backfill")
            and from_round <= row["round"] <= to_round
            and row["vbucket"] in vbuckets
            and (row["collection_id"] == 0 or is_kept_drop(row))
        ]

    def older_versions(self) -> Sequence[HeldVersion]:
        return [version.held for version in reversed(self._lake.versions[1:-1])]

    def is_readable(self, version: int, vbucket: int) -> bool:
        return version not in self._lake.unreadable


def is_kept_drop(row: Row) -> bool:
    """Whether a system event drops the default collection, and the lake keeps its rows."""
    told = json.loads(row["detail"])
    is_drop = told["event"] == "END_COLLECTION" and told["collection_id"] == 0
    return bool(row["collection_id"] is None and is_drop)


class RoundsInMemory:
    """Rounds from a real producer into a `MemoryLake`: tasks run one after the other."""

    def __init__(
        self, settings: Settings, *, policy: RollbackPolicy = RollbackPolicy.REWRITE
    ) -> None:
        self.settings = settings
        self.access: SourceAccess = source_access(settings)
        self.lake = MemoryLake()
        self.policy = policy

    def plan(self) -> RoundPlan | None:
        cluster = query_cluster(self.access)
        position = self.lake.position(self.policy)
        plan = plan_round(position, cluster, self.settings.round, self.settings.flow_control, 1)
        return plan if isinstance(plan, RoundPlan) else None

    def received(self, plan: RoundPlan, on_batch: Callable[[], None] | None = None) -> list[Row]:
        """Run a round without committing it: killed before its commit, it leaves nothing."""
        batches: list[pa.RecordBatch] = []
        for task in plan.tasks:
            budget = TaskBudget(plan.target_bytes, plan.target_seconds)
            receiver = TaskReceiver(task, plan.round, budget, self.access, f"test-r{plan.round}")
            for batch in receiver.batches():
                assert batch.schema == CHANGES
                batches.append(batch)
                if on_batch is not None:
                    on_batch()
        rows: list[Row] = pa.Table.from_batches(batches).to_pylist()
        return rows

    def run(self, plan: RoundPlan | None = None) -> bool:
        """Plan and commit a round; False where there is nothing to do."""
        plan = plan or self.plan()
        if plan is None:
            return False
        self.lake.append(self.received(plan))
        return True

    def until_idle(self, most: int = 12) -> None:
        """Run rounds until nothing is left to do."""
        for _ in range(most):
            if not self.run():
                return
        raise AssertionError(f"found work after {most} rounds, expected none")

    def with_budget(self, target_bytes: int) -> None:
        rounds = replace(self.settings.round, target_bytes=target_bytes)
        self.settings = replace(self.settings, round=rounds)
