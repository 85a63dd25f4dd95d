"""Compare the replicas of a lake with the source: by key, seqno and CAS, vbucket by vbucket.

Three looks, each at less:

1. all vbuckets by a digest: one metadata-only stream against one aggregate over the replicas;
2. the vbuckets whose digests differ, key by key: what the source changed above the replica's
   complete seqno is on its way and dropped, the rest are suspects;
3. the suspects again, with a fresh stream and the newest versions: what still differs is reported.

Nothing is written, to the lake or to the source. The replicas are pinned before the source is asked
what it holds, so the source is never older than what it is compared with, unless it lost writes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from dcp.lake.collections import replicas_of
from dcp.lake.connect import look_at_cluster, source_access
from dcp.lake.planning import require_same_bucket
from dcp.lake.run import lake_location, session
from dcp.lake.settings import Settings
from dcp.lake.tables import ReplicaTable, open_lake, replicas_in
from dcp.lake.task_errors import spark_errors
from dcp.lake.verify_frames import replica_digests, replica_rows, source_digests
from dcp.lake.verify_keys import ALL_EQUAL, KeyComparison, KeysCompared
from dcp.lake.verify_pins import Pin, chosen_vbuckets, pin_replicas, unpinned_vbuckets
from dcp.lake.verify_report import DEFAULT_KEYS, TableCompared, VerifyReport
from dcp.lake.verify_source import SourceReader, VerifyObserver
from dcp.lake.verify_stream import StreamEnding, metadata_access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    settings: Settings,
    *,
    vbuckets: Collection[int] | None = None,
    keys: int = DEFAULT_KEYS,
    observer: VerifyObserver | None = None,
    spark: "SparkSession | None" = None,
) -> VerifyReport:
    """Compare the lake's replicas with the bucket; all of its metadata is read.

    Args:
        settings: all of them.
        vbuckets: which to compare; None means all.
        keys: how many keys that differ are listed (all are counted).
        observer: hears of each look.
        spark: the session to use; None builds or takes over one.

    Raises:
        ConfigError: a vbucket that the bucket does not have.
        AuthenticationError, BucketError, NodeUnavailableError: the cluster cannot be read at all.
        LakeError: there is no lake, or it holds another bucket.
        DcplakeError: Spark failed.

    """
    begin = monotonic()
    access = metadata_access(source_access(settings))
    cluster = look_at_cluster(access)
    lake = open_lake(spark or session(settings), lake_location(settings))
    require_same_bucket(lake, cluster, settings.source.bucket)
    chosen = chosen_vbuckets(vbuckets, lake.identity.vbucket_count)
    in_bucket = set(replicas_of(cluster.manifest))
    replicas = replicas_in(lake)
    compared = tuple(each for each in replicas if each in in_bucket)
    reader = SourceReader(lake, settings, access, observer or VerifyObserver())
    tables, found = _look(reader, compared, chosen, keys) if compared else ((), ALL_EQUAL)
    return VerifyReport(
        place=str(lake.location),
        lake_id=lake.identity.lake_id,
        tables=tables,
        vbuckets=len(reader.readable(chosen)) if compared else 0,
        suspects=found.suspects,
        counts=found.counts,
        keys=found.keys,
        not_compared=tuple(left for _, left in sorted(reader.not_compared.items())),
        dropped=tuple(each.name for each in replicas if each not in in_bucket),
        seconds=monotonic() - begin,
    )


def _look(
    reader: SourceReader, replicas: tuple[ReplicaTable, ...], chosen: frozenset[int], keys: int
) -> tuple[tuple[TableCompared, ...], KeysCompared]:
    """Take the first look, and the others where it found something."""
    pins = pin_replicas(reader.lake, replicas, chosen)
    reader.leave_out(unpinned_vbuckets(pins))
    rows = reader.read("comparing", chosen, lambda source: source_digests(source, pins).collect())
    reader.leave_out_failed(
        [StreamEnding.parse(row["vbucket"], row["ending"]) for row in rows if row["ending"]]
    )
    found = digests_of(row for row in rows if not row["ending"])
    with spark_errors("verify failed in Spark"):
        held = digests_of(replica_digests(replica_rows(reader.lake, pins, chosen)).collect())
    tables = tuple(
        TableCompared(pin.replica.name, pin.version, pin.round, _documents(pin, held))
        for pin in pins
    )
    differing = reader.readable(differing_vbuckets(pins, found, held))
    if not differing:
        return tables, ALL_EQUAL
    return tables, KeyComparison(reader, replicas).compare(pins, differing, keys)


@dataclass(frozen=True, slots=True)
class Digest:
    """What one vbucket of one collection holds, in three numbers."""

    documents: int
    hash_sum: int
    hash_xor: int


Digests = Mapping[tuple[int, int], Digest]
"""By collection and vbucket; without those that hold nothing."""


def digests_of(rows: Iterable[Any]) -> Digests:
    """Return the digests of the rows of an aggregate."""
    return {
        (row["collection_id"], row["vbucket"]): Digest(
            row["documents"], int(row["hash_sum"]), row["hash_xor"]
        )
        for row in rows
    }


def differing_vbuckets(pins: Sequence[Pin], found: Digests, held: Digests) -> set[int]:
    """Return the vbuckets in which the digests of some pinned collection differ."""
    pinned = ((pin.replica.collection_id, vbucket) for pin in pins for vbucket in pin.complete)
    return {group[1] for group in pinned if found.get(group) != held.get(group)}


def _documents(pin: Pin, held: Digests) -> int:
    of_table = (held.get((pin.replica.collection_id, vbucket)) for vbucket in pin.complete)
    return sum(each.documents for each in of_table if each)
