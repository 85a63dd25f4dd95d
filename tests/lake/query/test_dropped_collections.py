"""What the view ``dropped_collections`` tells, over all that can become of a drop. No lake.

Verify and applies must find the drop in the same vbuckets.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from dcp.lake.apply.clearing_rules import keeps_dropped_rows
from dcp.lake.change_log.collection_events import CollectionEvent, newest_event, policies_to_batch
from dcp.lake.change_log.epochs import Fork
from dcp.lake.config.settings import DroppedPolicy
from dcp.lake.query.views_sql import dropped_collections_sql
from dcp.lake.tables.lake_tables import ReplicaTable
from dcp.lake.tables.schema import CHANGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END, BEGIN, DROP_SCOPE = "END_COLLECTION", "BEGIN_COLLECTION", "DROP_SCOPE"

Row = dict[str, Any]


def event(name: str, seqno: int, epoch: int = 0, round: int = 1) -> Row:
    return {"kind": "system_event", "seqno": seqno, "epoch": epoch, "round": round, "event": name}


def fork(epoch: int, seqno: int) -> Row:
    return {"kind": "rollback", "epoch": epoch, "seqno": seqno, "round": epoch + 1}


@dataclass(frozen=True)
class Case:
    """What a vbucket's log tells, and the drop's round in the view; None: it has no drop."""

    name: str
    rows: Sequence[Row]
    found: int | None


CASES: Final = (
    Case("dropped", [event(BEGIN, 1), event(END, 7, round=3)], 3),
    Case("never dropped", [event(BEGIN, 1)], None),
    Case("rolled back", [event(END, 7), fork(1, 6)], None),
    Case("rolled back to the drop", [event(END, 7), fork(1, 7)], 1),
    Case("dropped at a lower seqno", [event(END, 7), fork(1, 4), event(END, 6, 1, 2)], 2),
    Case("rolled back, an order besides", [event(END, 7), fork(1, 6), fork(2, 8)], None),
    Case("read anew, and told no more", [event(END, 7), fork(1, 0)], 1),
    Case("read anew, and told again", [event(END, 7), fork(1, 0), event(END, 7, 1, 2)], 1),
    Case("read anew, and there again", [event(END, 7), fork(1, 0), event(BEGIN, 2, 1, 2)], None),
    Case("rolled back, then read anew", [event(END, 7), fork(1, 6), fork(2, 0)], None),
    Case("read anew, then rolled back", [event(END, 7), fork(1, 0), fork(2, 3)], None),
    Case("read anew, then less rolled back", [event(END, 7), fork(1, 0), fork(2, 8)], 1),
    Case("its scope, too", [event(END, 7), event(DROP_SCOPE, 8)], 1),
    Case("high seqnos", [event(END, 2**64 - 2)], 1),
)


def asked(spark: "SparkSession", rows: Sequence[Row], *tables: ReplicaTable) -> list[Row]:
    content = pa.Table.from_pylist(list(rows), schema=CHANGES)
    spark.createDataFrame(content).createOrReplaceTempView("drop_log")
    found: list[Row] = spark.sql(dropped_collections_sql("drop_log", tables)).toArrow().to_pylist()
    return found


def told(row: Row, vbucket: int, collection_id: int) -> Row:
    """The row as the log has it."""
    event = row.get("event")
    plain = {name: value for name, value in row.items() if name != "event"}
    placed = {"epoch": 0} | plain | {"vbucket": vbucket}
    if event is None:
        return placed
    told = {"event": event, "scope_id": 9}
    if event == DROP_SCOPE:
        return placed | {"detail": json.dumps(told)}
    told["collection_id"] = collection_id
    return placed | {"collection_id": collection_id, "detail": json.dumps(told)}


@pytest.mark.slow
def test_a_drop_counts_in_each_vbucket_whose_live_history_has_it(spark: "SparkSession") -> None:
    """Each case is a collection of its own, in a vbucket of its own."""
    tables = [ReplicaTable(f"docs__s__c__{8 + at:x}", 8 + at) for at in range(len(CASES))]
    log = [
        told(row, vbucket, table.collection_id)
        for vbucket, (case, table) in enumerate(zip(CASES, tables, strict=True))
        for row in case.rows
    ]
    found = {each["table"]: each for each in asked(spark, log, *tables)}
    assert {
        case.name: found[table.name]["dropped_in_round"]
        for case, table in zip(CASES, tables, strict=True)
        if table.name in found
    } == {case.name: case.found for case in CASES if case.found is not None}
    assert {each["vbuckets"] for each in found.values()} == {1}
    assert {each["keeps_rows"] for each in found.values()} == {False}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verify_and_applies_find_a_kept_drop_where_the_view_tells_one(case: Case) -> None:
    places = [(each.get("event"), each["epoch"], each["seqno"]) for each in case.rows]
    forks = [Fork(epoch, seqno, 1) for name, epoch, seqno in places if name is None]
    events = [
        CollectionEvent(8, 0, epoch, seqno, 1, ends_documents=name != END)
        for name, epoch, seqno in places
        if name in (BEGIN, END)
    ]
    is_dropped = case.found is not None
    newest = newest_event(events, forks)
    assert (newest is not None and not newest.ends_documents) == is_dropped

    last_epoch = max(each["epoch"] for each in case.rows)
    again = [*forks, Fork(last_epoch + 1, 0, 2)]  # a history from 0 that tells nothing of it
    assert keeps_dropped_rows([], events, last_epoch, again) == is_dropped


@pytest.mark.slow
def test_a_collection_has_one_row_and_without_tables_there_is_none(spark: "SparkSession") -> None:
    kept, other = ReplicaTable("docs__s__c__8", 8), ReplicaTable("docs__s__d__9", 9)
    log = [told(event(END, 7, round=round), vb, 8) for vb, round in ((3, 4), (0, 2), (1, 2))]
    log.append(told(event(END, 8, round=2), 0, 9))
    policies = {8: DroppedPolicy.KEEP, 9: DroppedPolicy.DELETE}
    log += 2 * policies_to_batch(policies, 2).to_pylist()  # of two tasks
    assert sorted(asked(spark, log, kept, other), key=lambda each: each["table"]) == [
        {
            "table": kept.name,
            "collection_id": 8,
            "dropped_in_round": 2,
            "vbuckets": 3,
            "keeps_rows": True,
        },
        {
            "table": other.name,
            "collection_id": 9,
            "dropped_in_round": 2,
            "vbuckets": 1,
            "keeps_rows": False,
        },
    ]
    assert asked(spark, log) == []
