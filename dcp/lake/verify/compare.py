"""Compares the replicas of a lake with the source: by key, seqno and CAS, vbucket by vbucket.

Three passes, each over less:

1. all vbuckets by a digest: one metadata-only stream against one aggregate over the replicas;
2. the vbuckets whose digests differ, key by key: what the source changed above the replica's
   complete seqno is on its way and dropped, the rest are suspects;
3. the suspects again, with a fresh stream and the newest versions: what still differs is reported.

Nothing is written, to the lake or to the source. The replicas are pinned before the source is asked
what it holds, so the source is never older than what it is compared with, unless it lost writes.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from dcp.lake.adapters.opening import opened_lake
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.collection_events import kept_vbuckets
from dcp.lake.config.settings import Settings
from dcp.lake.receive.remembered_nodes import remembered_nodes
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.lake_state import filtered_lake_state, require_same_bucket
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.run.control_requests import vbuckets_of
from dcp.lake.spark.failures import spark_errors
from dcp.lake.tables.collections import replicas_of
from dcp.lake.tables.document_filter import filter_of
from dcp.lake.tables.lake_tables import ReplicaTable, refuse_lost_replica, replicas_in
from dcp.lake.tables.round_record import StuckReason
from dcp.lake.verify.frames import (
    Pins,
    pin_replicas,
    replica_digests,
    replica_rows,
    source_digests,
    unpinned_vbuckets,
)
from dcp.lake.verify.keys import ALL_EQUAL, KeysCompared, compare_keys
from dcp.lake.verify.report import DEFAULT_KEYS, TableCompared, VerifyReport
from dcp.lake.verify.source_reader import ShowPass, SourceReader
from dcp.lake.verify.stream import StreamEnding, metadata_access
from dcp.printable import number_ranges
from dcp.records import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    settings: Settings,
    *,
    vbuckets: Collection[int] | None = None,
    keys: int = DEFAULT_KEYS,
    show_pass: ShowPass = lambda *_: nullcontext(),
    spark: "SparkSession | None" = None,
) -> VerifyReport:
    """Compare the lake's replicas with the bucket; reads all metadata of the bucket.

    Args:
        settings: all sections.
        vbuckets: the vbuckets to compare; None means all.
        keys: the number of differing keys to list (all are counted).
        show_pass: shows each pass while the source is read.
        spark: the session to use; None builds or takes over one.

    Raises:
        ConfigError: the bucket lacks a vbucket, or a run refuses the filter.
        AuthenticationError, BucketError, NodeUnavailableError: the cluster cannot be read at all.
        LakeError: there is no lake, or it holds another bucket.
        DcplakeError: Spark failed.
    """
    begin = monotonic()
    access = metadata_access(source_access(settings))
    with opened_lake(settings, spark) as lake:
        remembered = remembered_nodes(lake.store, settings.source.bucket)
        probe = partial(query_cluster, access, remembered)
        cluster = probe()
        require_same_bucket(lake, cluster, settings.source.bucket)
        ranges = None if vbuckets is None else number_ranges(vbuckets)
        chosen = vbuckets_of(ranges, lake.identity.vbucket_count)
        in_bucket = set(replicas_of(cluster.manifest))
        newest = latest_round(lake)
        if newest:
            refuse_lost_replica(lake, in_bucket)
        replicas = replicas_in(lake)
        dropped = tuple(each for each in replicas if each not in in_bucket)
        kept = kept_vbuckets(lake, newest)
        document_filter = filter_of(lake, settings, cluster.manifest)
        lake_state = filtered_lake_state(lake, document_filter)
        reader = SourceReader(lake, settings, access, probe, lake_state, show_pass)
        reader.leave_out(
            [
                LeftOut(
                    state.vbucket,
                    StuckReason.ROLLBACK,
                    f"{state.order}, which the next run follows",
                )
                for state in lake_state.states.values()
                if state.order is not None
            ]
        )
        tables, found = (
            _compare(
                reader,
                {each: chosen - kept.get(each.collection_id, frozenset()) for each in replicas},
                chosen,
                keys,
            )
            if replicas
            else ((), ALL_EQUAL)
        )
        return VerifyReport(
            location=str(lake.location),
            lake_id=lake.identity.lake_id,
            tables=tables,
            vbuckets=len(reader.readable(chosen)) if replicas else 0,
            suspects=found.suspects,
            counts=found.counts,
            keys=found.keys,
            not_compared=tuple(left for _, left in sorted(reader.not_compared.items())),
            dropped=tuple(each.name for each in dropped if each.collection_id not in kept),
            kept={
                each.name: kept[each.collection_id]
                for each in replicas
                if each.collection_id in kept
            },
            seconds=round(monotonic() - begin, 3),
        )


def _compare(
    reader: SourceReader,
    wanted: Mapping[ReplicaTable, frozenset[int]],
    chosen: frozenset[int],
    keys: int,
) -> tuple[tuple[TableCompared, ...], KeysCompared]:
    """Compare the ``wanted`` vbuckets of each replica, all of them among the ``chosen`` ones."""
    statuses, pins = pin_replicas(reader.lake, wanted, reader.document_filter)
    reader.leave_out(unpinned_vbuckets(wanted, pins))
    rows = reader.read("comparing", chosen, lambda source: source_digests(source, pins).collect())
    reader.leave_out_failed(
        [read(StreamEnding, json.loads(row["ending"])) for row in rows if row["ending"]]
    )
    found = digests_of(row for row in rows if not row["ending"])
    with spark_errors("verify failed in Spark"):
        in_replica = digests_of(
            replica_digests(replica_rows(reader.lake, statuses, chosen)).collect()
        )
    tables = tuple(
        TableCompared(
            replica.name,
            statuses[replica].version,
            statuses[replica].round,
            sum(in_replica.get((replica.collection_id, each), (0,))[0] for each in seqnos),
        )
        for replica, seqnos in pins.items()
        if seqnos
    )
    differing = reader.readable(differing_vbuckets(pins, found, in_replica))
    if not differing:
        return tables, ALL_EQUAL
    return tables, compare_keys(reader, wanted, statuses, pins, differing, keys)


Digests = Mapping[tuple[int, int], tuple[int, int, int]]
"""By collection and vbucket: documents, hash_sum and hash_xor, without empty ones.

A digest of -1 documents says nothing of them (`dcp.lake.verify.frames`). No digest of the replica
equals it, so the keys of that vbucket are compared.
"""


def digests_of(rows: Iterable[Any]) -> Digests:
    return {
        (row["collection_id"], row["vbucket"]): (
            row["documents"],
            int(row["hash_sum"]),
            row["hash_xor"],
        )
        for row in rows
        if row["documents"]
    }


def differing_vbuckets(pins: Pins, found: Digests, in_replica: Digests) -> set[int]:
    pinned = (
        (replica.collection_id, vbucket) for replica, seqnos in pins.items() for vbucket in seqnos
    )
    return {group[1] for group in pinned if found.get(group) != in_replica.get(group)}
