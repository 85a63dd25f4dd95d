"""Reads a lake's state: its vbuckets' states, and the facts that make some begin a new epoch."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dcp.client.probe import ProbedCluster
from dcp.errors import ConfigError
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.epochs import forks_between, live_complete_seqnos
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import RollbackPolicy, Settings
from dcp.lake.rounds.backfill_plan import BackfillPlan
from dcp.lake.rounds.rollback_plan import plan_rollback, rollback_target
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.document_filter import EVERYTHING, DocumentFilter
from dcp.lake.tables.lake_tables import LakeTables, cleaned_round
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, state_of


@dataclass(frozen=True, slots=True)
class LakeState:
    lake_id: str
    latest_round: int
    states: Mapping[int, LakeVbucketState] = field(default_factory=dict)
    rollbacks: Collection[Restart | LeftOut] = ()
    """For each vbucket with a rollback order the restart that follows it, or why none can."""
    stale: Collection[int] = ()
    """Vbuckets that a replica table shows as of an older round. They have not begun at 0 since."""
    resyncs: Collection[int] = ()
    """Vbuckets that users want to begin at 0. They have not done so since their request began."""
    backfill: BackfillPlan | None = None
    document_filter: DocumentFilter = EVERYTHING
    delayed: frozenset[int] = frozenset()
    """Vbuckets whose last rounds brought no rows (`dcp.lake.rounds.delayed_vbuckets`).

    A higher seqno of theirs starts no round. A round for other vbuckets streams them too.
    """

    def state(self, vbucket: int) -> LakeVbucketState:
        return state_of(self.states, vbucket)

    def restarted(self, vbucket: int, restart: Restart | None) -> LakeVbucketState:
        """Return the state from which to stream a vbucket; its rows pass the filter."""
        state, rules = self.state(vbucket), self.document_filter.rules
        if restart is not None:
            start_seqno = state.start_seqno if rules.starts_now else None
            state = replace(state.restarted(restart), start_seqno=start_seqno)
        # All present rows passed this filter, or the vbucket has none.
        return replace(state, filter_fingerprint=self.document_filter.fingerprint)

    def has_started(self, vbucket: int) -> bool:
        """Return False for an unread vbucket if `filter.since` is now: its start is unknown."""
        is_known = self.state(vbucket).failover_log is not None
        return is_known or not self.document_filter.rules.starts_now

    def refuse_late_start(self) -> None:
        """Refuse a lake that has begun at seqno 0, if the filter says to start now.

        Raises:
            ConfigError: the lake has begun at seqno 0.
        """
        if not self.document_filter.rules.starts_now:
            return
        begun = (state for state in self.states.values() if state.start_seqno is None)
        if not all(map(self.document_filter.has_read, begun)):
            raise ConfigError(
                f"filter.since: found now, and lake {self.lake_id} has read vbuckets from seqno 0: "
                "expected a time, or nothing; or set lake.root to a new location"
            )


def read_lake_state(
    lake: LakeTables,
    settings: Settings,
    document_filter: DocumentFilter,
    stale: Mapping[int, int],
    resyncs: Mapping[int, int],
    next_backfill: Callable[[int, Mapping[int, LakeVbucketState]], BackfillPlan | None],
    delayed: frozenset[int] = frozenset(),
) -> LakeState:
    """Return the state from which to plan a round.

    ``stale`` maps vbuckets to the round as of which a replica table holds them (`stale_vbuckets`).
    ``resyncs`` maps vbuckets to the round after which they must begin again. ``next_backfill`` gets
    the newest round and its states; it may ask replicas, and answer requests in ``control``.
    """
    newest = latest_round(lake)
    states = states_at(lake, newest)
    policy = settings.policy.rollback
    ordered = [state for state in states.values() if state.order is not None]
    # A beginning whose rows were cleaned from the log does not count: no table can apply it.
    cleaned = cleaned_round(lake) if stale else 0
    stale = {vb: max(number, cleaned) for vb, number in stale.items() if vb in states}
    return LakeState(
        lake.identity.lake_id,
        newest,
        states,
        ordered_restarts(lake, ordered, newest, policy),
        _not_begun_since(lake, stale, newest),
        _not_begun_since(lake, resyncs, newest),
        next_backfill(newest, states),
        document_filter,
        delayed,
    )


def stale_vbuckets(versions: Iterable[AppliedVersion]) -> dict[int, int]:
    """Return the vbuckets that some version holds as of an older round, with that round."""
    stale: dict[int, int] = {}
    for vbucket, number in (each for version in versions for each in version.stale.items()):
        stale[vbucket] = min(number, stale.get(vbucket, number))
    return stale


def _not_begun_since(lake: LakeTables, rounds: Mapping[int, int], newest: int) -> set[int]:
    """Return the vbuckets that have not begun at seqno 0 after their round."""
    forks = forks_between(lake, min(rounds.values(), default=newest), newest, rounds)
    beginnings = ((vb, fork.round) for vb, own in forks.items() for fork in own if not fork.seqno)
    return rounds.keys() - {vb for vb, number in beginnings if number > rounds[vb]}


def ordered_restarts(
    lake: LakeTables, ordered: Collection[LakeVbucketState], newest: int, policy: RollbackPolicy
) -> list[Restart | LeftOut]:
    targets = ((state.vbucket, rollback_target(state, policy)) for state in ordered)
    bounds = {vbucket: most_seqno for vbucket, (most_seqno, _) in targets}
    complete = live_complete_seqnos(lake, ordered, bounds, newest)
    return [plan_rollback(state, complete.get(state.vbucket, 0), policy) for state in ordered]


def tasks_at_once(lake: LakeTables, *, beside_apply: bool = False) -> int:
    """Return the most tasks of a round; 0 if the cluster decides.

    A receiving task keeps its core until its end. On one machine, a round therefore leaves half of
    the cores to a running apply. On a single core, Spark lets them take turns.
    """
    slots = lake.store.slots
    if slots and beside_apply:
        return max(1, slots // 2)
    return slots


def filtered_lake_state(lake: LakeTables, document_filter: DocumentFilter) -> LakeState:
    """Return a lake's state without restarts, for a lake whose filter may say to start now.

    Raises:
        ConfigError: see `LakeState.refuse_late_start`.
    """
    newest = latest_round(lake)
    states = states_at(lake, newest)
    lake_id = lake.identity.lake_id
    lake_state = LakeState(lake_id, newest, states, document_filter=document_filter)
    lake_state.refuse_late_start()
    return lake_state


def require_same_bucket(lake: LakeTables, cluster: ProbedCluster, bucket: str) -> None:
    """Refuse a cluster whose bucket is not the lake's.

    Raises:
        LakeError: the cluster is another one, or the bucket was created again: its uuid or number
            of vbuckets differs.
    """
    found = replace(lake.identity.in_cluster(cluster.map), bucket=bucket)
    lake.identity.require_same(found, str(lake.location))
