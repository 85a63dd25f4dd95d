"""The marks of softly dropped collections, over all that can become of a drop. No lake."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from dcp.lake.query.views_sql import dropped_documents_sql
from dcp.lake.tables.schema import CHANGES, REPLICA
from dcp.lake.tables.tables import ReplicaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TABLE: Final = ReplicaTable("docs__s__c__8", 8)
FIRST, LATER = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00.5+00:00"
ALONE, WITH_SCOPE = "collection dropped", "collection and scope dropped"
END, BEGIN, DROP_SCOPE = "END_COLLECTION", "BEGIN_COLLECTION", "DROP_SCOPE"

Row = dict[str, Any]
Mark = tuple[int, int, str]
"""Seqno and round of the drop, and the reason."""


def event(
    name: str, seqno: int, epoch: int = 0, round: int = 1, marked_at: str | None = None
) -> Row:
    told = {"event": name, "scope_id": 9, "value": "00"}
    if name != DROP_SCOPE:
        told["collection_id"] = 8
    if marked_at is not None:
        told["marked_at"] = marked_at
    place = {"kind": "system_event", "seqno": seqno, "epoch": epoch, "round": round}
    return place | {"detail": json.dumps(told)}


def drop(seqno: int, epoch: int = 0, round: int = 1, marked_at: str = FIRST) -> Row:
    return event(END, seqno, epoch, round, marked_at)


def fork(epoch: int, seqno: int) -> Row:
    return {"kind": "rollback", "epoch": epoch, "seqno": seqno, "round": epoch + 1}


@dataclass(frozen=True)
class Case:
    """What a vbucket's log tells, up to which seqno it is complete, and the mark of its row."""

    name: str
    rows: Sequence[Row]
    high: int
    mark: Mark | None
    dropped_at: str = FIRST


CASES: Final = (
    Case("dropped", [event(BEGIN, 1), drop(7)], 7, (7, 1, ALONE)),
    Case("its snapshot is not complete", [drop(7)], 6, None),
    Case("never dropped", [event(BEGIN, 1)], 9, None),
    Case("kept, not marked", [event(END, 7)], 9, None),
    Case("rolled back", [drop(7), fork(1, 6)], 9, None),
    Case("rolled back to the drop", [drop(7), fork(1, 7)], 9, (7, 1, ALONE)),
    Case(
        "rolled back and dropped at a lower seqno",
        [drop(7), fork(1, 4), drop(6, epoch=1, round=2, marked_at=LATER)],
        9,
        (6, 2, ALONE),
        LATER,
    ),
    Case("rolled back, an order besides", [drop(7), fork(1, 6), fork(2, 8)], 9, None),
    Case("flushed after it", [drop(7), event(BEGIN, 8)], 9, None),
    Case("read anew, and told no more", [drop(7), fork(1, 0)], 3, (7, 1, ALONE)),
    Case(
        "read anew, and told again",
        [drop(7), fork(1, 0), drop(7, epoch=1, round=2, marked_at=LATER)],
        9,
        (7, 2, ALONE),
    ),
    Case(
        "being read anew, and told again, but not complete",
        [drop(7), fork(1, 0), drop(7, epoch=1, round=2, marked_at=LATER)],
        0,
        (7, 1, ALONE),
    ),
    Case("read anew, and there again", [drop(7), fork(1, 0), event(BEGIN, 2, 1, 2)], 3, None),
    Case("rolled back, then read anew", [drop(7), fork(1, 6), fork(2, 0)], 9, None),
    Case("read anew, then rolled back", [drop(7), fork(1, 0), fork(2, 3)], 9, (7, 1, ALONE)),
    Case("its scope, too", [drop(7), event(DROP_SCOPE, 8)], 8, (7, 1, WITH_SCOPE)),
    Case("its scope's drop is not complete", [drop(7), event(DROP_SCOPE, 8)], 7, (7, 1, ALONE)),
    Case("high seqnos", [drop(2**64 - 2)], 2**64 - 1, (2**64 - 2, 1, ALONE)),
)


def test_each_row_is_marked_by_the_drop_that_is_live_in_its_vbucket(spark: "SparkSession") -> None:
    positions = [
        {"kind": "position", "round": 9, "position": {"complete_seqno": case.high}}
        for case in CASES
    ]
    log = [
        {"epoch": 0} | row | {"vbucket": vbucket}
        for vbucket, case in enumerate(CASES)
        for row in (*case.rows, positions[vbucket])
    ]
    rows = [
        {"vbucket": number, "key": case.name, "seqno": 1, "value": b"{}", "datatype": 1}
        for number, case in enumerate(CASES)
    ]
    for name, table in (("drop_log", CHANGES), ("drop_rows", REPLICA)):
        content = pa.Table.from_pylist(log if table is CHANGES else rows, schema=table)
        spark.createDataFrame(content).createOrReplaceTempView(name)
    other = ReplicaTable("docs__s__d__9", 9)
    asked = dropped_documents_sql("drop_log", {TABLE: "drop_rows", other: "drop_rows"})
    found = {row["key"]: row for row in spark.sql(asked).toArrow().to_pylist()}
    assert {row["table"] for row in found.values()} == {TABLE.name}
    assert {
        key: (int(row["dropped_seqno"]), row["dropped_in_round"], row["reason"])
        for key, row in found.items()
    } == {case.name: case.mark for case in CASES if case.mark is not None}
    for case in CASES:
        if case.mark is not None:
            told = found[case.name]["dropped_at"].astimezone(UTC)
            assert told == datetime.fromisoformat(case.dropped_at), case.name
            assert found[case.name]["document"] == "{}"


def test_without_tables_the_view_is_empty(spark: "SparkSession") -> None:
    spark.createDataFrame(CHANGES.empty_table()).createOrReplaceTempView("drop_log")
    found = spark.sql(dropped_documents_sql("drop_log", {}))
    assert found.count() == 0 and {"table", "dropped_at", "key", "document"} <= set(found.columns)
