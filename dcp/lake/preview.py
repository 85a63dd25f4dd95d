"""What the next round would do, without doing it: nothing is made and nothing is written."""

from dcp.lake.applied import replica_status
from dcp.lake.connect import look_at_cluster, source_access
from dcp.lake.plan import Idle, LakePosition, RoundPlan, plan_round
from dcp.lake.planning import (
    next_round,
    require_same_bucket,
    stale_vbuckets,
    tasks_at_once,
)
from dcp.lake.run import lake_location, session
from dcp.lake.settings import Settings
from dcp.lake.tables import find_lake, replicas_in

NEW_LAKE = "(a new lake)"


def preview(settings: Settings) -> RoundPlan | Idle:
    """Plan the next round of the lake, or the first one where there is no lake yet.

    Raises:
        SourceError: the cluster cannot be asked.
        LakeError: what is there is no lake, or holds another bucket.

    """
    cluster = look_at_cluster(source_access(settings))
    spark = session(settings)
    lake = find_lake(spark, lake_location(settings))
    if lake is None:
        position = LakePosition(NEW_LAKE, 0)
        return plan_round(position, cluster, settings.round, tasks_at_once(spark))
    require_same_bucket(lake, cluster, settings.source.bucket)
    replicas = replicas_in(lake)
    applied = (replica_status(lake, replica).applied for replica in replicas)
    stale = stale_vbuckets(version for version in applied if version is not None)
    return next_round(lake, replicas, cluster, settings, stale=stale)
