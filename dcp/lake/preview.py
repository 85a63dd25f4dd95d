"""What the next round would do, without doing it: nothing is made and nothing is written."""

from dcp.lake.applied import unindexed_applied
from dcp.lake.changes import latest_round, positions_at
from dcp.lake.connect import look_at_cluster, source_access
from dcp.lake.driver import require_same_bucket
from dcp.lake.plan import Idle, LakePosition, RoundPlan, plan_round
from dcp.lake.run import lake_location, session
from dcp.lake.session import slots_of
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
    slots = slots_of(spark.conf.get("spark.master", "") or "") or 2
    lake = find_lake(spark, lake_location(settings))
    if lake is None:
        return plan_round(LakePosition(NEW_LAKE, 0), cluster, settings.round, slots)
    require_same_bucket(lake, cluster, settings.source.bucket)
    newest = latest_round(lake)
    position = LakePosition(lake.identity.lake_id, newest, positions_at(lake, newest))
    applied = unindexed_applied(lake, replicas_in(lake))
    return plan_round(position, cluster, settings.round, slots, applied=applied)
