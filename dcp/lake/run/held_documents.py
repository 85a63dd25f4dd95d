"""Tells from a lake's tables how many documents a vbucket has, and how large they are.

The newest rounds tell neither: they may have brought a few large documents again and again.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dcp.lake.store.sql import integer_list
from dcp.lake.tables.tables import LakeTables, replicas_in

_MEASURED_VBUCKETS: Final = 8
"""Hashes spread keys over vbuckets, so a few have the mean of all; tables are clustered by them."""
_MUTATION_BYTES: Final = 55
"""The length of a MUTATION without key and value (docs/flow-control.md)."""
_MEASURED_ROWS: Final = 1_000
"""Of each table; the lengths are taken here, as delta-rs has no SQL for those of bytes."""


@dataclass(frozen=True, slots=True)
class HeldDocuments:
    rows: Counter[int]
    """By vbucket."""
    mean_bytes: float | None
    """The mean length of the documents as frames, with uncompressed values. None: the tables have
    no rows of the vbuckets.
    """

    def at_most(self, vbucket: int, complete_seqno: int, high_seqno: int) -> int:
        """Return how many documents a vbucket can have at a high seqno of its history.

        Each seqno above the one where the tables are complete adds one key at most.
        """
        return min(high_seqno, self.rows[vbucket] + max(0, high_seqno - complete_seqno))


def held_documents(lake: LakeTables, vbuckets: Collection[int]) -> HeldDocuments:
    rows: Counter[int] = Counter()
    documents, all_bytes = 0, 0.0
    for replica in replicas_in(lake):
        table = lake.table(replica.name)
        by_vbucket = f"{_are(vbuckets)} GROUP BY vbucket"
        counted = table.rows("vbucket, count(*) AS documents", by_vbucket)
        held = Counter({row["vbucket"]: int(row["documents"]) for row in counted})
        if held:
            measured = [vbucket for vbucket, _ in held.most_common(_MEASURED_VBUCKETS)]
            sample = f"{_are(measured)} LIMIT {_MEASURED_ROWS}"
            mean = table.take_rows("key, value", sample, _mean_frame_bytes)
            all_bytes += mean * held.total()
        rows += held
        documents += held.total()
    return HeldDocuments(rows, all_bytes / documents if documents else None)


def _mean_frame_bytes(rows: Iterator[Mapping[str, Any]]) -> float:
    count = total_bytes = 0
    for row in rows:
        count += 1
        total_bytes += _MUTATION_BYTES + len(row["key"]) + len(row["value"] or b"")
    return total_bytes / count if count else 0.0


def _are(vbuckets: Collection[int]) -> str:
    return f"vbucket IN ({integer_list(sorted(vbuckets))})" if vbuckets else "false"
