"""Builds the queries of a verification as DataFrames over the rows of source and replicas.

First whole vbuckets are compared by a digest that no order and no partition changes: the number of
documents, and sum and xor of a hash of (key, seqno, CAS). Only vbuckets whose digests differ are
compared key by key.
"""

from collections.abc import Collection, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dcp.lake.change_log.applied import ReplicaStatus, replica_status
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.store.sql import one_of
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.lake.tables.round_record import StuckReason
from dcp.lake.tables.schema import CHANGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Pins = Mapping[ReplicaTable, Mapping[int, int]]
"""By replica, the complete seqno of each vbucket to compare."""


def pinned_seqnos(
    lake: LakeTables, replica: ReplicaStatus, document_filter: DocumentFilter
) -> dict[int, int]:
    """Return the seqno up to which each vbucket of a replica's version equals the source.

    A missing vbucket is reported as not compared. It is missing, for one, if it was read with
    another filter: this one decides which documents of the source count.
    """
    if replica.round == 0:  # before the first apply nothing is promised
        return dict.fromkeys(range(lake.identity.vbucket_count), 0)
    states = states_at(lake, replica.round)
    stale = replica.current.stale
    return {
        vbucket: state.complete_seqno
        for vbucket, state in states.items()
        if vbucket not in stale and document_filter.has_read(state)
    }


def pin_replicas(
    lake: LakeTables,
    wanted: Mapping[ReplicaTable, Collection[int]],
    document_filter: DocumentFilter,
) -> tuple[dict[ReplicaTable, ReplicaStatus], Pins]:
    """Return the newest version of each replica, and its pins of the ``wanted`` vbuckets."""
    statuses = {replica: replica_status(lake, replica) for replica in wanted}
    pins = {}
    for replica, status in statuses.items():
        seqnos = pinned_seqnos(lake, status, document_filter)
        pins[replica] = {vb: seqnos[vb] for vb in sorted(wanted[replica]) if vb in seqnos}
    return statuses, pins


def unpinned_vbuckets(wanted: Mapping[ReplicaTable, Collection[int]], pins: Pins) -> list[LeftOut]:
    """Return the wanted vbuckets that cannot be compared, with the table that lacks their state."""
    return [
        LeftOut(
            vbucket,
            StuckReason.STALE,
            f"{replica.name} waits for its first complete snapshot after a rollback, or with "
            "another [filter]",
        )
        for replica, vbuckets in wanted.items()
        for vbucket in sorted(set(vbuckets) - pins[replica].keys())
    ]


_PINS: Final = pa.schema(
    [
        *map(CHANGES.field, ("collection_id", "vbucket")),
        ("complete_seqno", CHANGES.field("seqno").type),
    ]
)


def pins_table(pins: Pins) -> pa.Table:
    entries = [
        (replica.collection_id, vbucket, seqno)
        for replica, seqnos in pins.items()
        for vbucket, seqno in seqnos.items()
    ]
    columns = zip(*entries, strict=True) if entries else ((), (), ())
    arrays = [pa.array(*each) for each in zip(columns, _PINS.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_PINS)


_VBUCKET: Final = ["collection_id", "vbucket"]
_KEY: Final = [*_VBUCKET, "key"]

_HASH: Final = "xxhash64(key, seqno, cas)"
# Rows without a key tell of flushes and drops. A digest says nothing where the stream still told
# documents below one: then it counts -1 documents, and equals none.
_IS_TOLD: Final = "FILTER (WHERE key IS NOT NULL)"
_HAS_GONE: Final = f"max(seqno) FILTER (WHERE key IS NULL) > min(seqno) {_IS_TOLD}"
_DIGEST: Final = {
    "documents": f"IF({_HAS_GONE}, -1, count(*) {_IS_TOLD})",
    "hash_sum": f"coalesce(sum(CAST({_HASH} AS DECIMAL(20,0))) {_IS_TOLD}, 0)",
    "hash_xor": f"coalesce(bit_xor({_HASH}) {_IS_TOLD}, 0)",
}

IN_REPLICA_ONLY: Final = "in replica only"
IN_SOURCE_ONLY: Final = "in source only"
DIFFERS: Final = "different"
REPEATED: Final = "repeated in replica"
KINDS: Final = (IN_REPLICA_ONLY, IN_SOURCE_ONLY, DIFFERS, REPEATED)

_CLEARED_SEQNO: Final = (
    "coalesce(max(IF(key IS NULL, told.seqno, NULL)) OVER (PARTITION BY collection_id, vbucket), 0)"
)

# What the source ended: by a deletion, or by a flush or drop of the collection above the document.
_GONE: Final = "(told IS NULL OR told.deleted OR told.seqno < cleared_seqno)"

# In this order. What the source changed above the complete seqno is on its way, a deletion too, and
# a flush or drop of the whole collection.
_KIND: Final = f"""CASE
WHEN ending IS NOT NULL THEN 'ending'
WHEN complete_seqno IS NULL OR key IS NULL THEN NULL
WHEN copies > 1 THEN '{REPEATED}'
WHEN cleared_seqno > complete_seqno THEN NULL
WHEN told.seqno > complete_seqno THEN NULL
WHEN in_replica IS NULL THEN CASE WHEN {_GONE} THEN NULL ELSE '{IN_SOURCE_ONLY}' END
WHEN {_GONE} THEN '{IN_REPLICA_ONLY}'
WHEN told.seqno = in_replica.seqno AND told.cas = in_replica.cas THEN NULL
ELSE '{DIFFERS}' END"""

COMPARED: Final = (
    "collection_id",
    "vbucket",
    "key",
    "kind",
    "in_replica.seqno AS replica_seqno",
    "in_replica.cas AS replica_cas",
    "copies",
    "told.seqno AS source_seqno",
    "told.cas AS source_cas",
    "told.deleted AS source_deleted",
    "ending",
)


def replica_rows(
    lake: LakeTables, statuses: Mapping[ReplicaTable, ReplicaStatus], vbuckets: Collection[int]
) -> "DataFrame":
    """Return the rows of the replicas' versions, at least one, in some vbuckets."""
    narrowed = len(vbuckets) < lake.identity.vbucket_count
    where = f"WHERE {one_of('vbucket', vbuckets)}" if narrowed else ""
    parts = [
        lake.spark.sql(
            f"SELECT {replica.collection_id}L AS collection_id, vbucket, key, seqno, cas "
            f"FROM {lake.table_sql(replica.name, status.version)} {where}"
        )
        for replica, status in statuses.items()
    ]
    return reduce(lambda one, other: one.unionAll(other), parts)


def replica_digests(replica: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    digest = [f.expr(sql).alias(name) for name, sql in _DIGEST.items()]
    return replica.groupBy(*_VBUCKET).agg(*digest)


def source_digests(source: "DataFrame", pins: Pins) -> "DataFrame":
    """Return the source's digests up to the pins, and how each stream ended.

    A key that changed while it was streamed counts twice. Then the digest differs, and the key by
    key comparison finds no difference.
    """
    from pyspark.sql import functions as f

    digest = [f.expr(sql).alias(name) for name, sql in _DIGEST.items()]
    return (
        source.join(_pins(source.sparkSession, pins), _VBUCKET, "left")
        .where("key IS NULL OR (NOT deleted AND seqno <= complete_seqno)")
        .groupBy(*_VBUCKET)
        .agg(*digest, f.expr("max(ending)").alias("ending"))
    )


def differences(
    source: "DataFrame",
    replica: "DataFrame",
    pins: Pins,
    seen: "DataFrame | None" = None,
) -> "DataFrame":
    """Return the keys that differ, and how each stream ended (``kind`` is then 'ending').

    The rows are those of whole vbuckets. ``seen``, an earlier answer, limits the keys.
    """
    from pyspark.sql import functions as f

    told = source.groupBy(*_KEY).agg(
        f.expr("max(struct(seqno, cas, deleted))").alias("told"),
        f.expr("max(ending)").alias("ending"),
    )
    in_replica = replica.groupBy(*_KEY).agg(
        f.expr("max(struct(seqno, cas))").alias("in_replica"), f.expr("count(*)").alias("copies")
    )
    found = (
        told.join(in_replica, _KEY, "full_outer")
        .join(_pins(source.sparkSession, pins), _VBUCKET, "left")
        .withColumn("cleared_seqno", f.expr(_CLEARED_SEQNO))
        .withColumn("kind", f.expr(_KIND))
        .where("kind IS NOT NULL")
        .selectExpr(*COMPARED)
    )
    if seen is None:
        return found
    again = seen.where("ending IS NULL").selectExpr(*_KEY, "true AS again")
    return found.join(again, _KEY, "left").where("ending IS NOT NULL OR again").drop("again")


def _pins(spark: "SparkSession", pins: Pins) -> "DataFrame":
    return spark.createDataFrame(pins_table(pins)).hint("broadcast")
