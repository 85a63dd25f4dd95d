"""Plans the next round, or a backfill, without running it. Writes nothing."""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.consumer_events import VbucketStopped
from dcp.client.probe import ProbedCluster
from dcp.lake.adapters.opening import opened_store
from dcp.lake.apply.typed_plan import ContractBook, typed_plan
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, paused_by
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.config.settings import ApplySettings, ApplyWhen, RollbackPolicy, Settings
from dcp.lake.config.spark_master import slots_of
from dcp.lake.receive.dropped_policies import DroppedPolicies
from dcp.lake.receive.remembered_nodes import remembered_nodes
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.receive.task_consumer import stream_start
from dcp.lake.rounds.backfill_plan import BackfillEstimate, copy_to_begin_with
from dcp.lake.rounds.lake_state import (
    LakeState,
    ordered_restarts,
    read_lake_state,
    require_same_bucket,
    stale_vbuckets,
)
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import Idle, LeftOut, Outlook, ReadAgain, RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.run.control_requests import Requests
from dcp.lake.run.driver_backfills import (
    DriverBackfills,
    backfill_of,
    copies_of,
    requested_backfill,
)
from dcp.lake.run.persistence_gate import NO_DISKS, disks_of
from dcp.lake.store.sql import one_of
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.collections import collections_of
from dcp.lake.tables.document_filter import filter_of
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, find_lake, replicas_in
from dcp.lake.tables.vbucket_state import (
    LakeVbucketState,
    Restart,
    RollbackOrder,
    state_of,
)
from dcp.printable import number_ranges
from dcp.protocol.events import FailoverLogReceived, RollbackOrdered, StreamOpened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOGGER: Final = logging.getLogger(__name__)
_NAME: Final = "dcplake-plan"
_WAIT_SECONDS: Final = 1.0


def orders_ahead(plan: RoundPlan, access: SourceAccess) -> dict[int, RollbackOrder]:
    """Return the rollback orders that the streams of a plan will get, by vbucket.

    It requests each stream as the round will, but with its position as the end. A node that accepts
    ends such a stream at once, without a row (kv_engine ``engines/ep/src/dcp/active_stream.cc``);
    another orders the rollback. So the node's own rule decides, with the rights of a run. Purge
    seqnos would need a further role. It leaves out the streams of a backfill: replicas may send
    them.

    Vbuckets whose node does not answer within `round.node_deadline_seconds` are logged.
    """
    starts = [
        replace(stream_start(stream), end_seqno=stream.position.seqno)
        for stream in plan.streams
        if stream.position.seqno and stream.restart is None and not stream.is_backfill
    ]
    if not starts:
        return {}
    # A member of a relay's group would hold others back.
    connection = replace(access.consumer.connection, receiver_group_tag="")
    settings = replace(access.consumer, connection=connection)
    seeds = [str(node) for node in plan.tasks[0].seeds]
    orders: dict[int, RollbackOrder] = {}
    waiting = {start.vbucket for start in starts}
    unknown: dict[str, list[int]] = {}
    with Consumer(starts, seeds, settings, access.source.credentials(), _NAME) as consumer:
        while waiting:
            delivery = consumer.next(_WAIT_SECONDS)
            for event in () if delivery is None else delivery.events:
                match event:
                    case RollbackOrdered(vbucket, asked, seqno):
                        orders[vbucket] = RollbackOrder(asked.seqno, seqno, asked.vb_uuid)
                    case FailoverLogReceived(vbucket, failover_log) if vbucket in orders:
                        # It comes right behind the order.
                        orders[vbucket] = replace(orders[vbucket], failover_log=failover_log)
                        waiting.discard(vbucket)
                    case StreamOpened(vbucket):
                        waiting.discard(vbucket)
                    case VbucketStopped(vbucket, _, detail) if vbucket in waiting:
                        unknown.setdefault(detail, []).append(vbucket)
                        waiting.discard(vbucket)
    for detail, vbuckets in unknown.items():
        told = number_ranges(vbuckets)
        _LOGGER.warning("vbuckets %s: not known if they are ordered back: %s", told, detail)
    return orders


_MEASURED_VBUCKETS: Final = 8
"""Keys are spread over vbuckets by a hash, so a few vbuckets have the mean size of all."""
_MUTATION_BYTES: Final = 55
"""The length of a MUTATION without key and value (docs/explain/flow-control.md)."""
_MEASURED_ROWS: Final = 1_000
"""Rows of each table whose lengths are taken here: delta-rs has no SQL for the length of bytes."""


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    rows: Counter[int]
    """By vbucket."""
    mean_bytes: float | None
    """The mean length of frames with uncompressed values. None: there are no rows."""

    def at_most(self, vbucket: int, complete_seqno: int, high_seqno: int) -> int:
        """Return an upper limit of a vbucket's documents at a high seqno of its history.

        Each seqno above the complete one adds one key at most.
        """
        return min(high_seqno, self.rows[vbucket] + max(0, high_seqno - complete_seqno))


def count_documents(lake: LakeTables, vbuckets: Collection[int]) -> DocumentCounts:
    rows: Counter[int] = Counter()
    documents, all_bytes = 0, 0.0
    for replica in replicas_in(lake):
        table = lake.table(replica.name)
        by_vbucket = f"{one_of('vbucket', vbuckets)} GROUP BY vbucket"
        counted = table.rows("vbucket, count(*) AS documents", by_vbucket)
        counts = Counter({row["vbucket"]: int(row["documents"]) for row in counted})
        if counts:
            measured = [vbucket for vbucket, _ in counts.most_common(_MEASURED_VBUCKETS)]
            sample = f"{one_of('vbucket', measured)} LIMIT {_MEASURED_ROWS}"
            mean = table.take_rows("key, value", sample, _mean_frame_bytes)
            all_bytes += mean * counts.total()
        rows += counts
        documents += counts.total()
    return DocumentCounts(rows, all_bytes / documents if documents else None)


def _mean_frame_bytes(rows: Iterator[Mapping[str, Any]]) -> float:
    count = total_bytes = 0
    for row in rows:
        count += 1
        total_bytes += _MUTATION_BYTES + len(row["key"]) + len(row["value"] or b"")
    return total_bytes / count if count else 0.0


NEW_LAKE = "(a new lake)"


def preview(settings: Settings, spark: "SparkSession | None" = None) -> RoundPlan | Idle:
    """Plan the next round of the lake, or the first one if there is no lake yet.

    The plan's outlook estimates the vbuckets that the nodes will order back to their beginning. It
    names the tables that get other typed columns. ``spark`` is used if only Spark can read the
    lake; None builds or takes over a session.

    Raises:
        ConfigError: a run would refuse the settings for this cluster or table.
        SourceError: the cluster cannot be asked.
        LakeError: the table is foreign, or the lake holds another bucket.
    """
    settings.privacy.require_key()
    access = source_access(settings)
    persist_to = settings.policy.persist_to
    with opened_store(settings, spark) as store, store.cached_reads.read_once():
        cluster = query_cluster(access, remembered_nodes(store, settings.source.bucket))
        without_effect = (NO_DISKS,) if disks_of(persist_to, cluster.map) < persist_to else ()
        lake = find_lake(store)
        if lake is not None:
            return _preview_of(lake, settings, cluster, access, without_effect)
    rounds, flow, slots = settings.round, settings.flow_control, slots_of(settings.spark.master)
    refuse_unknown_names(settings, cluster, None)
    document_filter = filter_of(None, settings, cluster.manifest)
    lake_state = LakeState(NEW_LAKE, 0, document_filter=document_filter)
    outlook = Outlook(without_effect=without_effect)
    return replace(plan_round(lake_state, cluster, rounds, flow, slots), outlook=outlook)


def _preview_of(
    lake: LakeTables,
    settings: Settings,
    cluster: ProbedCluster,
    access: SourceAccess,
    without_effect: tuple[str, ...],
) -> RoundPlan | Idle:
    rounds, flow, slots = settings.round, settings.flow_control, slots_of(settings.spark.master)
    require_same_bucket(lake, cluster, settings.source.bucket)
    refuse_unknown_names(settings, cluster, lake)
    replicas = replicas_in(lake)
    applied = {replica: replica_status(lake, replica).applied for replica in replicas}
    stale = stale_vbuckets(version for version in applied.values() if version is not None)
    control = Control(lake, writes=False)
    requests = Requests(lake, control, _NAME, ())
    pause = requests.carry_out()
    lake_state = read_lake_state(
        lake,
        settings,
        filter_of(lake, settings, cluster.manifest),
        stale,
        requests.resyncs(),
        partial(DriverBackfills(lake, control, access, Observer()).next, cluster),
    )
    plan = plan_round(lake_state, cluster, rounds, flow, slots)
    orders = orders_ahead(plan, access) if isinstance(plan, RoundPlan) else {}
    outlook = Outlook(
        _read_again(lake, settings, cluster, lake_state, orders),
        _written_anew(lake, settings.apply, applied),
        without_effect,
        "" if pause is None else paused_by(pause),
    )
    return replace(plan, outlook=outlook)


def refuse_unknown_names(
    settings: Settings, cluster: ProbedCluster, lake: LakeTables | None
) -> None:
    """Refuse the names of ``policy.dropped_collections`` that a run would refuse."""
    known = DroppedPolicies.of_lake(settings.policy, lake)
    known.with_present(settings.policy, collections_of(cluster.manifest))


def _read_again(
    lake: LakeTables,
    settings: Settings,
    cluster: ProbedCluster,
    lake_state: LakeState,
    orders: Mapping[int, RollbackOrder],
) -> ReadAgain | None:
    states = lake_state.states.values()
    ordered = [state for state in states if state.order is not None]
    ordered += [lake_state.state(vbucket).ordered(order) for vbucket, order in orders.items()]
    policy = settings.policy.rollback
    followed = RollbackPolicy.REWRITE if policy is RollbackPolicy.FAIL else policy
    newest = lake_state.latest_round
    restarts = ordered_restarts(lake, ordered, newest, followed)
    again = [each.vbucket for each in restarts if isinstance(each, Restart) and not each.seqno]
    if not again:
        return None
    counts, highs = count_documents(lake, again), cluster.high_seqnos
    documents = sum(highs.get(vbucket, 0) for vbucket in again)
    if not _leaves_out_documents(settings.filter):
        documents = sum(
            counts.at_most(vbucket, lake_state.state(vbucket).complete_seqno, highs.get(vbucket, 0))
            for vbucket in again
        )
    each = counts.mean_bytes
    return ReadAgain(tuple(sorted(again)), documents, each and documents * each, policy)


def _written_anew(
    lake: LakeTables,
    settings: ApplySettings,
    applied: Mapping[ReplicaTable, AppliedVersion | None],
) -> tuple[str, ...]:
    if settings.when is ApplyWhen.NEVER and not settings.contracts_folder:
        return ()  # another job applies, perhaps with another file
    contracts, found = ContractBook(settings.contracts_folder), []
    for replica, version in applied.items():
        contract = contracts.contract_of(lake, replica)
        columns = lake.table(replica.name).columns()
        typed = typed_plan(columns, contract, is_applied=version is not None)
        contracts.refuse_loss(replica.name, typed)
        is_known = contract is None or contract.document.num_fields or typed.is_typed
        if typed.rewrites and is_known:  # else the documents tell what columns there will be
            found.append(replica.name)
    return tuple(found)


def _leaves_out_documents(rules: FilterSettings) -> bool:
    """Return whether the filter drops many documents that nodes send."""
    return replace(rules, system_xattrs=False) != FilterSettings()


def preview_backfill(
    settings: Settings,
    vbuckets: Collection[int] | None,
    nodes: str,
    megabytes_per_second: float | None = None,
) -> BackfillEstimate:
    """Estimate a backfill (`dcp.lake.run.backfill_command.backfill`) from the nodes' present
    seqnos.

    Raises:
        ConfigError: the bucket lacks a vbucket.
        SourceError: the cluster cannot be asked.
        LakeError: the table is foreign, or the lake holds another bucket.
    """
    access = source_access(settings)
    states: Mapping[int, LakeVbucketState] = {}
    documents = None
    with opened_store(settings) as store:
        cluster = query_cluster(access, remembered_nodes(store, settings.source.bucket))
        wanted = requested_backfill(vbuckets, nodes, megabytes_per_second)
        backfill = backfill_of(wanted, cluster.map.vbucket_count)
        if (lake := find_lake(store)) is not None:
            require_same_bucket(lake, cluster, settings.source.bucket)
            states = states_at(lake, latest_round(lake))
            documents = count_documents(lake, backfill.vbuckets)
    counts_seqnos = documents is None or _leaves_out_documents(settings.filter)
    copies = copies_of(cluster, access, reads_replicas=backfill.nodes.reads_replicas)
    seqnos: Counter[NodeAddress] = Counter()
    left_out = []
    for vbucket in sorted(backfill.vbuckets):
        state = state_of(states, vbucket)
        found = copy_to_begin_with(state, cluster, copies.get(vbucket, ()), backfill.nodes)
        if isinstance(found, LeftOut):
            left_out.append(found)
        elif documents is None or counts_seqnos:
            seqnos[found.node] += found.high_seqno
        else:
            seqnos[found.node] += documents.at_most(vbucket, state.complete_seqno, found.high_seqno)
    return BackfillEstimate(
        len(backfill.vbuckets),
        seqnos,
        None if documents is None else documents.mean_bytes,
        backfill.nodes.bytes_per_second,
        tuple(left_out),
    )
