"""Reads from the change log what became of collections, and which of them rounds touched."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from dcp.lake.log.epochs import CollectionEvent
from dcp.lake.store.sql import integer_list
from dcp.lake.tables.schema import ITEM_KINDS, RowKind, is_kind
from dcp.lake.tables.tables import LakeTables
from dcp.wire.json_tree import json_tree
from dcp.wire.vocabulary import SystemEventKind


def collection_events(
    lake: LakeTables,
    collection_id: int,
    from_round: int,
    to_round: int,
    vbuckets: Collection[int],
) -> list[CollectionEvent]:
    rows = lake.changes.rows(
        "DISTINCT vbucket, epoch, seqno, round, collection_id, detail",
        f"{is_kind(RowKind.SYSTEM_EVENT)} AND round BETWEEN {int(from_round)} AND {int(to_round)} "
        f"AND vbucket IN ({integer_list(sorted(vbuckets))}) "
        f"AND (collection_id = {int(collection_id)} OR collection_id IS NULL)",
    )
    return [
        CollectionEvent(
            row["vbucket"],
            row["epoch"],
            int(row["seqno"]),
            row["round"],
            keeps=row["collection_id"] is None,
        )
        for row in rows
        if row["collection_id"] == collection_id
        or dropped_collection(row["detail"]) == collection_id
    ]


def kept_vbuckets(lake: LakeTables) -> dict[int, frozenset[int]]:
    """Return the vbuckets in which the lake keeps the rows of a dropped collection, by its id.

    The newest drop of a collection that the lake received in a vbucket decides.
    """
    rows = lake.changes.rows(
        "vbucket, round, seqno, collection_id, detail", is_kind(RowKind.SYSTEM_EVENT)
    )
    newest: dict[tuple[int, int], tuple[int, int, bool]] = {}
    for row in rows:
        if (dropped := dropped_collection(row["detail"])) is not None:
            place = dropped, row["vbucket"]
            this = row["round"], int(row["seqno"]), row["collection_id"] is None
            newest[place] = max(this, newest.get(place, this))
    kept = defaultdict[int, set[int]](set)
    for (collection_id, vbucket), (_, _, keeps) in newest.items():
        if keeps:
            kept[collection_id].add(vbucket)
    return {collection_id: frozenset(vbuckets) for collection_id, vbuckets in kept.items()}


def changed_collections(lake: LakeTables, after_round: int, to_round: int) -> frozenset[int]:
    rows = lake.changes.rows(
        "DISTINCT collection_id",
        f"round > {int(after_round)} AND round <= {int(to_round)} AND {is_kind(*ITEM_KINDS)}",
    )
    return frozenset(row["collection_id"] for row in rows)


def first_rounds_after(
    lake: LakeTables, held: Mapping[int, int], newest_round: int
) -> dict[int, int]:
    """Return the first round above ``held`` in which a collection has rows, by its id.

    ``held`` is a round by a collection's id. Collections without such rows are left out.
    """
    behind = " OR ".join(
        f"(collection_id = {int(collection_id)} AND round > {int(number)})"
        for collection_id, number in held.items()
        if number < newest_round
    )
    if not behind:
        return {}
    rows = lake.changes.rows(
        "collection_id, min(round) AS first",
        f"round > {min(held.values())} AND {is_kind(*ITEM_KINDS, RowKind.SYSTEM_EVENT)} "
        f"AND ({behind}) GROUP BY collection_id",
    )
    return {row["collection_id"]: row["first"] for row in rows}


def dropped_collection(system_event: str) -> int | None:
    """Return the collection that a system event dropped; None for other events.

    ``system_event`` is the JSON of `dcp.lake.receive.system_events.system_event_text`.
    """
    told = json_tree(system_event)
    if told["event"] != SystemEventKind.END_COLLECTION.name:
        return None
    collection_id: int | None = told.get("collection_id")
    return collection_id
