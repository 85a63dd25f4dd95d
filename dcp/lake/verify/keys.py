"""Compares single keys of vbuckets whose digests differ: second and third pass of a verification.

The second pass compares all keys. The third one compares the keys that differed, with a fresh
stream and the newest versions. The answers stay in Spark, since a whole table may differ.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.spark.failures import spark_errors
from dcp.lake.store.sql import integer_list
from dcp.lake.tables.lake_tables import ReplicaTable
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


class KeyComparison:
    def __init__(
        self,
        reader: SourceReader,
        wanted: Mapping[ReplicaTable, frozenset[int]],
    ) -> None:
        """``wanted`` are the vbuckets to compare, by replica."""
        self._reader = reader
        self._wanted = wanted
        self._names = {each.collection_id: each.name for each in wanted}

    def compare(
        self,
        statuses: Mapping[ReplicaTable, ReplicaStatus],
        pins: Pins,
        vbuckets: frozenset[int],
        keys: int,
    ) -> KeysCompared:
        """Return the differences in some vbuckets in both passes; list at most ``keys`` of them."""
        reader = self._reader

        def compared(source: "DataFrame") -> "DataFrame":
            return differences(source, replica_rows(reader.lake, statuses, vbuckets), pins)

        with self._kept(compared, vbuckets) as seen:
            suspects = self._count(seen, pins)
            again = self._reader.readable(suspects)
            if not again:
                return ALL_EQUAL
            wanted = {replica: own & again for replica, own in self._wanted.items()}
            newest, new_pins = pin_replicas(reader.lake, wanted, reader.document_filter)
            self._reader.leave_out(unpinned_vbuckets(wanted, new_pins))

            def compared_again(source: "DataFrame") -> "DataFrame":
                held = replica_rows(reader.lake, newest, again)
                return differences(source, held, new_pins, seen)

            with self._kept(compared_again, again) as left:
                still = self._reader.readable(self._count(left, new_pins))
                return KeysCompared(
                    sum(suspects.values()),
                    dict.fromkeys(KINDS, 0)
                    | {
                        row["kind"]: row["count"]
                        for row in _of_vbuckets(left, still).groupBy("kind").count().collect()
                    },
                    self._listed(left, still, keys),
                )

    @contextmanager
    def _kept(
        self, question: Callable[["DataFrame"], "DataFrame"], vbuckets: frozenset[int]
    ) -> "Iterator[DataFrame]":
        """Ask once, and let Spark keep the answer until it is read: it may exceed the driver's
        memory.
        """

        def ask(source: "DataFrame") -> "DataFrame":
            answer = question(source).persist()
            answer.count()
            return answer

        answer = self._reader.read("looking closer", vbuckets, ask)
        try:
            with spark_errors("verify failed in Spark"):
                yield answer
        finally:
            answer.unpersist()

    def _count(self, answer: "DataFrame", pins: Pins) -> dict[int, int]:
        """Count the differing keys by vbucket; note the vbuckets that cannot be compared."""
        endings = [
            read(StreamEnding, json.loads(row["ending"]))
            for row in answer.where("ending IS NOT NULL").collect()
        ]
        self._reader.leave_out_failed(endings)
        keys = answer.where("ending IS NULL")
        grouped = keys.groupBy("collection_id", "vbucket", "kind").count().collect()
        lacking = {(row[0], row[1]) for row in grouped if row["kind"] == IN_REPLICA_ONLY}
        self._reader.leave_out(undecidable(lacking, endings, pins))
        counts: dict[int, int] = {}
        for row in grouped:
            counts[row["vbucket"]] = counts.get(row["vbucket"], 0) + row["count"]
        return counts

    def _listed(
        self, answer: "DataFrame", vbuckets: frozenset[int], most: int
    ) -> tuple[Difference, ...]:
        ordered = _of_vbuckets(answer, vbuckets).orderBy("collection_id", "vbucket", "key")
        return tuple(
            Difference(
                self._names[row["collection_id"]],
                row["vbucket"],
                row["key"],
                row["kind"],
                _side(row["replica_seqno"], row["replica_cas"]),
                _side(row["source_seqno"], row["source_cas"], deleted=bool(row["source_deleted"])),
            )
            for row in ordered.limit(most).collect()
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
            "deletions purged",
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


def _of_vbuckets(answer: "DataFrame", vbuckets: frozenset[int]) -> "DataFrame":
    listed = integer_list(sorted(vbuckets)) or "-1"
    return answer.where(f"ending IS NULL AND vbucket IN ({listed})")
