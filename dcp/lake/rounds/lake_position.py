"""Tells where a lake stands: the states of its vbuckets, and which of them must begin anew."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from dcp.client.probe import ClusterView
from dcp.lake.config.settings import RollbackPolicy, Settings
from dcp.lake.log.changes import latest_round
from dcp.lake.log.epochs import begun_anew, forks_between, live_complete_seqnos
from dcp.lake.log.round_records import positions_at
from dcp.lake.rounds.planning import LakePosition
from dcp.lake.rounds.rollback_plan import plan_rollback, rollback_target
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.lake_tables import LakeTables, cleaned_round
from dcp.lake.tables.vbucket_state import Restart, RestartReason, VbucketProgress


def lake_position(lake: LakeTables, settings: Settings, stale: Mapping[int, int]) -> LakePosition:
    """Return a lake's position, with the restarts that its log and its replicas ask for.

    ``stale`` are vbuckets that a replica holds as of that round (`stale_vbuckets`).
    """
    newest = latest_round(lake)
    states = positions_at(lake, newest)
    policy = RollbackPolicy(settings.policy.rollback)
    ordered = [state for state in states.values() if state.order is not None]
    restarts = ordered_restarts(lake, ordered, newest, policy)
    restarts |= _stale_restarts(lake, states, newest, stale)
    return LakePosition(lake.identity.lake_id, newest, states, restarts)


def stale_vbuckets(versions: Iterable[AppliedVersion]) -> dict[int, int]:
    """Return the vbuckets that some versions hold as of an older round, and that round."""
    stale: dict[int, int] = {}
    for vbucket, number in (each for version in versions for each in version.stale.items()):
        stale[vbucket] = min(number, stale.get(vbucket, number))
    return stale


def _stale_restarts(
    lake: LakeTables, states: Mapping[int, VbucketProgress], newest: int, stale: Mapping[int, int]
) -> dict[int, Restart | LeftOut]:
    """Return the restarts of stale vbuckets that have not begun at seqno 0 yet."""
    if not stale:
        return {}
    forks = forks_between(lake, min(stale.values()), newest, stale.keys())
    begun = begun_anew(stale, forks, cleaned_round(lake))
    return {
        vbucket: Restart(RestartReason.STALE)
        for vbucket in stale
        if vbucket in states and vbucket not in begun
    }


def ordered_restarts(
    lake: LakeTables, ordered: Collection[VbucketProgress], newest: int, policy: RollbackPolicy
) -> dict[int, Restart | LeftOut]:
    bounds = {state.vbucket: rollback_target(state, policy).seqno for state in ordered}
    complete = live_complete_seqnos(lake, ordered, bounds, newest)
    return {
        state.vbucket: plan_rollback(state, [complete.get(state.vbucket, 0)], policy)
        for state in ordered
    }


def tasks_at_once(lake: LakeTables, *, beside_apply: bool = False) -> int:
    """Return how many tasks a round may have; 0 if the cluster decides.

    A receiving task keeps its core until it is done. So on one machine a round leaves half of the
    cores to a running apply. On a single core, Spark lets them take turns.
    """
    slots = lake.store.slots
    if slots and beside_apply:
        return max(1, slots // 2)
    return slots


def filtered_position(lake: LakeTables, document_filter: DocumentFilter) -> LakePosition:
    """Return a lake's position without restarts, for one that may start by a filter.

    Raises:
        ConfigError: as of `LakePosition.refuse_late_start`.
    """
    newest = latest_round(lake)
    states = positions_at(lake, newest)
    lake_id = lake.identity.lake_id
    position = LakePosition(lake_id, newest, states, document_filter=document_filter)
    position.refuse_late_start()
    return position


def require_same_bucket(lake: LakeTables, cluster: ClusterView, bucket: str) -> None:
    """Refuse a cluster whose bucket is not the lake's.

    Raises:
        LakeError: it is another cluster; or uuid or number of vbuckets differ: the bucket was made
            anew.
    """
    found = replace(
        lake.identity,
        bucket=bucket,
        bucket_uuid=cluster.map.bucket_uuid,
        vbucket_count=cluster.map.vbucket_count,
        cluster_uuid=cluster.map.cluster_uuid,
    )
    lake.identity.require_same(found, str(lake.location))
