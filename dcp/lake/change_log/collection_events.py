"""Reads the events of collections from the log, and the policies for rows of dropped collections.

The log has a begin, flush or drop of a collection once for each vbucket, at a seqno that a rollback
may undo. The policy for a dropped collection's rows is recorded once, by the first round that
receives the drop in a vbucket. It holds for all vbuckets, even if they receive the drop later.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from dcp.lake.change_log.epochs import Fork, dead_by_sql, forks_between, live_up_to
from dcp.lake.change_log.system_event_detail import (
    IS_DROP_SQL,
    KEEPS_ROWS_SQL,
    SystemEventDetail,
    drop_with_policy,
)
from dcp.lake.config.settings import DroppedPolicy
from dcp.lake.store.sql import integer_list
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import CHANGES, RowKind, is_kind
from dcp.records import read
from dcp.wire.vocabulary import SystemEventKind

IS_EVENT_SQL: Final = (
    f"{is_kind(RowKind.SYSTEM_EVENT)} AND vbucket IS NOT NULL AND collection_id IS NOT NULL"
)
"""True for a `CollectionEvent`: only a row of an `EndOfDocuments` has a collection."""


@dataclass(frozen=True, slots=True)
class CollectionEvent:
    """The begin, flush or drop of a collection in one vbucket, as the log records it.

    After it, the source has no document of the collection with a lower seqno
    (`dcp.wire.system_event.EndOfDocuments`).
    """

    collection_id: int
    vbucket: int
    epoch: int
    seqno: int
    round: int
    ends_documents: bool = True
    """The lake loses these documents, too (`_ends_documents`)."""


def _ends_documents(policy: DroppedPolicy | None, *, is_drop: bool) -> bool:
    """Return whether an event of a collection ends all older documents in the lake.

    It does unless it is a drop whose policy keeps them.
    """
    return not (is_drop and policy is DroppedPolicy.KEEP)


def ends_documents_sql(changes_sql: str) -> str:
    """Return the condition that a row is an event that ends documents, as `_ends_documents`."""
    kept = f"array_contains({kept_sql(changes_sql)}, collection_id)"
    return f"{IS_EVENT_SQL} AND NOT ({IS_DROP_SQL} AND {kept})"


def collection_events(
    lake: LakeTables,
    collection_ids: Collection[int],
    from_round: int,
    to_round: int,
    vbuckets: Collection[int],
) -> list[CollectionEvent]:
    rows = lake.changes.rows(
        "DISTINCT collection_id, vbucket, epoch, seqno, round, detail",
        f"{is_kind(RowKind.SYSTEM_EVENT)} AND round BETWEEN {int(from_round)} AND {int(to_round)} "
        f"AND vbucket IN ({integer_list(sorted(vbuckets))}) "
        f"AND collection_id IN ({integer_list(sorted(collection_ids))})",
    )
    drops = [SystemEventDetail.parse(row["detail"]).is_drop for row in rows]
    policies = dropped_policies(lake) if any(drops) else {}
    ends = (
        _ends_documents(policies.get(row["collection_id"]), is_drop=is_drop)
        for row, is_drop in zip(rows, drops, strict=True)
    )
    return [
        read(CollectionEvent, row | {"ends_documents": each})
        for row, each in zip(rows, ends, strict=True)
    ]


def is_undone(event: CollectionEvent, forks: Iterable[Fork]) -> bool:
    """Return whether a rollback has undone an event; ``forks`` are all forks of its vbucket.

    Streaming a vbucket again from its beginning undoes no event. The new history has the event too,
    or may have forgotten it.
    """
    rollbacks = [fork for fork in forks if fork.seqno]
    return event.seqno > live_up_to(event.epoch, rollbacks)


def undone_by_sql(forks: str, event: str) -> str:
    """Return `is_undone` as an SQL condition.

    ``forks`` is an array of structs, ``event`` a struct or table, each with ``epoch`` and
    ``seqno``.
    """
    return f"exists({forks}, f -> {dead_by_sql('f', event)} AND f.seqno > 0)"


def newest_event(
    events: Iterable[CollectionEvent], forks: Sequence[Fork]
) -> CollectionEvent | None:
    left = (event for event in events if not is_undone(event, forks))
    return max(left, key=lambda event: (event.epoch, event.seqno), default=None)


def kept_vbuckets(lake: LakeTables, to_round: int) -> dict[int, frozenset[int]]:
    """By id of a dropped collection, return the vbuckets in which its rows stay."""
    policies = dropped_policies(lake)
    collection_ids = [each for each, policy in policies.items() if policy is DroppedPolicy.KEEP]
    if not collection_ids:
        return {}
    vbuckets = range(lake.identity.vbucket_count)
    events = defaultdict[tuple[int, int], list[CollectionEvent]](list)
    for event in collection_events(lake, collection_ids, 1, to_round, vbuckets):
        events[event.collection_id, event.vbucket].append(event)
    forks = forks_between(lake, 0, to_round, {vbucket for _, vbucket in events})
    kept = defaultdict[int, set[int]](set)
    for (collection_id, vbucket), found in events.items():
        newest = newest_event(found, forks[vbucket])
        if newest is not None and not newest.ends_documents:
            kept[collection_id].add(vbucket)
    return {collection_id: frozenset(found) for collection_id, found in kept.items()}


# The collection's id identifies a drop: a new collection of the same name has another id. The
# manifest's uid does not, because a node that skips a manifest gives the drop another uid.
_IS_DECISION: Final = f"{is_kind(RowKind.SYSTEM_EVENT)} AND vbucket IS NULL"


def policies_to_batch(policies: Mapping[int, DroppedPolicy], round_number: int) -> pa.RecordBatch:
    rows = [
        {
            "round": round_number,
            "kind": RowKind.SYSTEM_EVENT,
            "collection_id": collection_id,
            "detail": str(drop_with_policy(collection_id, policy)),
        }
        for collection_id, policy in sorted(policies.items())
    ]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGES)


def begin_text(collection_id: int) -> str:
    """Return the ``detail`` of an event at seqno 0 that says that a collection exists.

    The default collection exists without a begin event. If a rollback lost its drop, only this
    event says so. It ends no document, since all have higher seqnos.
    """
    event = SystemEventKind.BEGIN_COLLECTION.name
    return str(SystemEventDetail(event, collection_id=collection_id))


def dropped_policies(lake: LakeTables) -> dict[int, DroppedPolicy]:
    rows = lake.changes.rows("DISTINCT collection_id, detail", _IS_DECISION)
    return {
        row["collection_id"]: DroppedPolicy(SystemEventDetail.parse(row["detail"]).policy or "")
        for row in rows
    }


def kept_sql(changes_sql: str) -> str:
    """Return a scalar subquery: the array of the dropped collections whose rows stay."""
    return (
        f"(SELECT collect_set(collection_id) FROM {changes_sql} WHERE {_IS_DECISION} "
        f"AND {KEEPS_ROWS_SQL})"
    )
