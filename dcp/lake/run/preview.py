"""Plans the next round without running it: nothing is made and nothing is written."""

from dcp.lake.config.settings import Settings
from dcp.lake.config.spark_master import slots_of
from dcp.lake.log.applied import replica_status
from dcp.lake.log.lake_position import lake_position, require_same_bucket, stale_vbuckets
from dcp.lake.log.plan import LakePosition, plan_round
from dcp.lake.log.round_plan import Idle, RoundPlan
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.tables.opening import lake_location, spark_of
from dcp.lake.tables.tables import find_lake, replicas_in

NEW_LAKE = "(a new lake)"


def preview(settings: Settings) -> RoundPlan | Idle:
    """Plan the next round of the lake, or the first one where there is no lake yet.

    Raises:
        SourceError: the cluster cannot be asked.
        LakeError: what is there is no lake, or holds another bucket.

    """
    cluster = query_cluster(source_access(settings))
    lake = find_lake(spark_of(settings), lake_location(settings))
    rounds, flow, slots = settings.round, settings.flow_control, slots_of(settings.spark.master)
    if lake is None:
        return plan_round(LakePosition(NEW_LAKE, 0), cluster, rounds, flow, slots)
    require_same_bucket(lake, cluster, settings.source.bucket)
    replicas = replicas_in(lake)
    applied = (replica_status(lake, replica).applied for replica in replicas)
    stale = stale_vbuckets(version for version in applied if version is not None)
    return plan_round(lake_position(lake, settings, stale), cluster, rounds, flow, slots)
