"""What the view ``dropped_collections`` tells, over all that can become of a drop. No lake."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from dcp.lake.query.views_sql import dropped_collections_sql
from dcp.lake.tables.lake_tables import ReplicaTable
from dcp.lake.tables.schema import CHANGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

END, BEGIN, DROP_SCOPE = "END_COLLECTION", "BEGIN_COLLECTION", "DROP_SCOPE"

Row = dict[str, Any]


def event(name: str, seqno: int, epoch: int = 0, round: int = 1, *, keeps: bool = False) -> Row:
    place = {"kind": "system_event", "seqno": seqno, "epoch": epoch, "round": round}
    return place | {"event": name, "keeps": keeps}


def fork(epoch: int, seqno: int) -> Row:
    return {"kind": "rollback", "epoch": epoch, "seqno": seqno, "round": epoch + 1}


@dataclass(frozen=True)
class Case:
    """What a vbucket's log tells, and what the view does: the drop's round, and if rows stay."""

    name: str
    rows: Sequence[Row]
    found: tuple[int, bool] | None


CASES: Final = (
    Case("dropped", [event(BEGIN, 1), event(END, 7, round=3)], (3, False)),
    Case("dropped and kept", [event(END, 7, keeps=True)], (1, True)),
    Case("never dropped", [event(BEGIN, 1)], None),
    Case("rolled back", [event(END, 7), fork(1, 6)], None),
    Case("rolled back to the drop", [event(END, 7), fork(1, 7)], (1, False)),
    Case("dropped at a lower seqno", [event(END, 7), fork(1, 4), event(END, 6, 1, 2)], (2, False)),
    Case("rolled back, an order besides", [event(END, 7), fork(1, 6), fork(2, 8)], None),
    Case("read anew, and told no more", [event(END, 7), fork(1, 0)], (1, False)),
    Case("read anew, and told again", [event(END, 7), fork(1, 0), event(END, 7, 1, 2)], (1, False)),
    Case("read anew, and there again", [event(END, 7), fork(1, 0), event(BEGIN, 2, 1, 2)], None),
    Case("rolled back, then read anew", [event(END, 7), fork(1, 6), fork(2, 0)], None),
    Case("read anew, then rolled back", [event(END, 7), fork(1, 0), fork(2, 3)], (1, False)),
    Case("its scope, too", [event(END, 7), event(DROP_SCOPE, 8)], (1, False)),
    Case("high seqnos", [event(END, 2**64 - 2)], (1, False)),
)


def asked(spark: "SparkSession", rows: Sequence[Row], *tables: ReplicaTable) -> list[Row]:
    content = pa.Table.from_pylist(list(rows), schema=CHANGES)
    spark.createDataFrame(content).createOrReplaceTempView("drop_log")
    found: list[Row] = spark.sql(dropped_collections_sql("drop_log", tables)).toArrow().to_pylist()
    return found


def told(row: Row, vbucket: int, collection_id: int) -> Row:
    """The row as the log has it."""
    event, keeps = row.get("event"), row.get("keeps")
    plain = {name: value for name, value in row.items() if name not in ("event", "keeps")}
    placed = {"epoch": 0} | plain | {"vbucket": vbucket}
    if event is None:
        return placed
    detail = {"event": event, "scope_id": 9}
    if event != DROP_SCOPE:
        detail["collection_id"] = collection_id
    ended = None if keeps or event == DROP_SCOPE else collection_id
    return placed | {"collection_id": ended, "detail": json.dumps(detail)}


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
        case.name: (found[table.name]["dropped_in_round"], found[table.name]["keeps_rows"])
        for case, table in zip(CASES, tables, strict=True)
        if table.name in found
    } == {case.name: case.found for case in CASES if case.found is not None}
    assert {each["vbuckets"] for each in found.values()} == {1}


def test_a_collection_has_one_row_and_without_tables_there_is_none(spark: "SparkSession") -> None:
    table, other = ReplicaTable("docs__s__c__8", 8), ReplicaTable("docs__s__d__9", 9)
    drops = [(3, 4, False), (0, 2, True), (1, 2, False)]
    log = [told(event(END, 7, round=r, keeps=keeps), vb, 8) for vb, r, keeps in drops]
    assert asked(spark, log, table, other) == [
        {
            "table": table.name,
            "collection_id": 8,
            "dropped_in_round": 2,
            "vbuckets": 3,
            "keeps_rows": True,
        }
    ]
    assert asked(spark, log) == []
