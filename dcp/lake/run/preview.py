"""Plans the next round, or a backfill, without running it: nothing is made, nothing is written."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dcp.client.addresses import NodeAddress
from dcp.lake.config.settings import Settings
from dcp.lake.config.spark_master import slots_of
from dcp.lake.log.applied import replica_status
from dcp.lake.log.changes import latest_round
from dcp.lake.log.round_records import positions_at, round_record
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.backfill_plan import copy_to_begin_with
from dcp.lake.rounds.backfill_report import BackfillEstimate
from dcp.lake.rounds.lake_position import lake_position, require_same_bucket, stale_vbuckets
from dcp.lake.rounds.planning import LakePosition, plan_round
from dcp.lake.rounds.round_plan import Idle, LeftOut, RoundPlan
from dcp.lake.run.backfill import BackfillWish
from dcp.lake.run.backfills import copies_of, request_of
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.opening import lake_location, spark_of
from dcp.lake.tables.tables import find_lake, replicas_in
from dcp.lake.tables.vbucket_state import VbucketProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEW_LAKE = "(a new lake)"


def preview(settings: Settings, spark: "SparkSession | None" = None) -> RoundPlan | Idle:
    """Plan the next round of the lake, or the first one where there is no lake yet.

    ``spark`` is used where the lake cannot be read without; None builds or takes over a session.

    Raises:
        SourceError: the cluster cannot be asked.
        LakeError: what is there is no lake, or holds another bucket.

    """
    cluster = query_cluster(source_access(settings))
    lake = find_lake(spark_of(settings, spark), lake_location(settings))
    rounds, flow, slots = settings.round, settings.flow_control, slots_of(settings.spark.master)
    if lake is None:
        document_filter = DocumentFilter.resolve(settings.filter, cluster.manifest)
        return plan_round(
            LakePosition(NEW_LAKE, 0, document_filter=document_filter), cluster, rounds, flow, slots
        )
    require_same_bucket(lake, cluster, settings.source.bucket)
    replicas = replicas_in(lake)
    applied = (replica_status(lake, replica).applied for replica in replicas)
    stale = stale_vbuckets(version for version in applied if version is not None)
    document_filter = DocumentFilter.resolve(settings.filter, cluster.manifest, replicas)
    position = replace(lake_position(lake, settings, stale), document_filter=document_filter)
    return plan_round(position, cluster, rounds, flow, slots)


def preview_backfill(settings: Settings, wish: BackfillWish) -> BackfillEstimate:
    """Estimate a backfill by what the nodes hold now.

    Raises:
        ConfigError: a vbucket that the bucket does not have.
        SourceError: the cluster cannot be asked.
        LakeError: what is there is no lake, or holds another bucket.

    """
    access = source_access(settings)
    cluster = query_cluster(access)
    lake = find_lake(spark_of(settings), lake_location(settings))
    request = request_of(wish.action(), cluster.map.vbucket_count)
    states: Mapping[int, VbucketProgress] = {}
    bytes_per_document = None
    if lake is not None:
        require_same_bucket(lake, cluster, settings.source.bucket)
        newest = latest_round(lake)
        states = positions_at(lake, newest)
        reports = round_record(lake, newest).reports if newest else ()
        if rows := sum(report.rows for report in reports):
            bytes_per_document = sum(report.frame_bytes for report in reports) / rows
    copies = copies_of(cluster, access, reads_replicas=request.source.reads_replicas)
    seqnos: Counter[NodeAddress] = Counter()
    left_out = []
    for vbucket in sorted(request.vbuckets):
        state = states.get(vbucket) or VbucketProgress.beginning(vbucket)
        found = copy_to_begin_with(state, cluster, copies.get(vbucket, ()), request.source)
        if isinstance(found, LeftOut):
            left_out.append(found)
        else:
            seqnos[found.node] += found.high_seqno
    return BackfillEstimate(
        len(request.vbuckets),
        seqnos,
        bytes_per_document,
        request.source.bytes_per_second,
        tuple(left_out),
    )
