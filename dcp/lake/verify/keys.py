"""Compares single keys of vbuckets whose digests differ: second and third pass of a verification.

The second pass compares all keys. The third one compares the keys that differed, with a fresh
stream and the newest versions. The answers stay in Spark, since a whole table may differ.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.spark.failures import spark_errors
from dcp.lake.store.sql import one_of
from dcp.lake.tables.lake_tables import ReplicaTable
from dcp.lake.tables.round_record import StuckReason
from dcp.lake.verify.frames import (
    IN_REPLICA_ONLY,
    KINDS,
    Pins,
    differences,
    pin_replicas,
    replica_rows,
    unpinned_vbuckets,
)
from dcp.lake.verify.report import Difference, KeyState
from dcp.lake.verify.source_reader import SourceReader
from dcp.lake.verify.stream import StreamEnding
from dcp.records import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class KeysCompared:
    suspects: int
    counts: dict[str, int]
    keys: tuple[Difference, ...]


ALL_EQUAL = KeysCompared(0, dict.fromkeys(KINDS, 0), ())


def compare_keys(
    reader: SourceReader,
    wanted: Mapping[ReplicaTable, frozenset[int]],
    statuses: Mapping[ReplicaTable, ReplicaStatus],
    pins: Pins,
    vbuckets: frozenset[int],
    keys: int,
) -> KeysCompared:
    """Return the differences in some vbuckets in both passes; list at most ``keys`` of them.

    ``wanted`` are the vbuckets to compare, by replica.
    """
    with _differences_kept(reader, statuses, pins, vbuckets) as seen:
        suspects = _count(reader, seen, pins)
        again = reader.readable(suspects)
        if not again:
            return ALL_EQUAL
        left_over = {replica: own & again for replica, own in wanted.items()}
        newest, new_pins = pin_replicas(reader.lake, left_over, reader.document_filter)
        reader.leave_out(unpinned_vbuckets(left_over, new_pins))
        with _differences_kept(reader, newest, new_pins, again, seen) as left:
            still = reader.readable(_count(reader, left, new_pins))
            return _compared(left, still, sum(suspects.values()), keys, wanted)


def _compared(
    answer: "DataFrame",
    vbuckets: frozenset[int],
    suspects: int,
    keys: int,
    replicas: Iterable[ReplicaTable],
) -> KeysCompared:
    """Count the differing keys of the last pass, and list the first of them."""
    found = answer.where(f"ending IS NULL AND {one_of('vbucket', vbuckets)}")
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    names = {each.collection_id: each.name for each in replicas}
    listed = found.orderBy("collection_id", "vbucket", "key").limit(keys).collect()
    return KeysCompared(
        suspects,
        dict.fromkeys(KINDS, 0) | counts,
        tuple(_difference(names[row["collection_id"]], row) for row in listed),
    )


@contextmanager
def _differences_kept(
    reader: SourceReader,
    statuses: Mapping[ReplicaTable, ReplicaStatus],
    pins: Pins,
    vbuckets: frozenset[int],
    seen: "DataFrame | None" = None,
) -> "Iterator[DataFrame]":
    """Find the differing keys of some vbuckets once, and keep them in Spark while the context is
    open: they may exceed the driver's memory.

    ``seen`` has the differences of an earlier pass. Only its keys are compared then.
    """

    def ask(source: "DataFrame") -> "DataFrame":
        in_replica = replica_rows(reader.lake, statuses, vbuckets)
        answer = differences(source, in_replica, pins, seen).persist()
        answer.count()
        return answer

    answer = reader.read("looking closer", vbuckets, ask)
    try:
        with spark_errors("verify failed in Spark"):
            yield answer
    finally:
        answer.unpersist()


def _count(reader: SourceReader, answer: "DataFrame", pins: Pins) -> dict[int, int]:
    """Count the differing keys by vbucket; note the vbuckets that cannot be compared."""
    endings = [
        read(StreamEnding, json.loads(row["ending"]))
        for row in answer.where("ending IS NOT NULL").collect()
    ]
    reader.leave_out_failed(endings)
    keys = answer.where("ending IS NULL")
    grouped = keys.groupBy("collection_id", "vbucket", "kind").count().collect()
    lacking = {(row[0], row[1]) for row in grouped if row["kind"] == IN_REPLICA_ONLY}
    reader.leave_out(undecidable(lacking, endings, pins))
    counts: dict[int, int] = {}
    for row in grouped:
        counts[row["vbucket"]] = counts.get(row["vbucket"], 0) + row["count"]
    return counts


def _difference(table: str, row: Any) -> Difference:
    return Difference(
        table,
        row["vbucket"],
        row["key"],
        row["kind"],
        _side(row["replica_seqno"], row["replica_cas"]),
        _side(row["source_seqno"], row["source_cas"], deleted=bool(row["source_deleted"])),
    )


def undecidable(
    lacking: Collection[tuple[int, int]], endings: Sequence[StreamEnding], pins: Pins
) -> list[LeftOut]:
    """Return the vbuckets in which a deletion may explain why the source lacks a key.

    ``lacking`` are collection and vbucket of such keys. A deletion above the complete seqno has not
    arrived yet, and would drop the key from the answer. But the source forgets deletions after some
    time.
    """
    purged = {each.vbucket: each.purge_seqno for each in endings}
    return [
        LeftOut(
            vbucket,
            StuckReason.DELETIONS_PURGED,
            f"the source forgot deletions up to seqno {purge_seqno}, above {seqno}, where "
            f"{replica.name} stands: a missing key proves nothing; replicate first",
        )
        for replica, seqnos in pins.items()
        for vbucket, seqno in seqnos.items()
        if (replica.collection_id, vbucket) in lacking
        and (purge_seqno := purged.get(vbucket, 0)) > seqno
    ]


def _side(seqno: Any, cas: Any, *, deleted: bool = False) -> KeyState | None:
    return None if seqno is None else KeyState(int(seqno), int(cas), deleted)
