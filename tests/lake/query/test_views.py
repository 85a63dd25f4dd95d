"""The views of documents, pending changes, positions and rounds."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dcp.lake.adapters.transaction import session_settings_for_a_while
from dcp.lake.change_log.epochs import newest_epochs
from dcp.lake.query.views import register_views, rounds
from dcp.lake.tables.lake_tables import DOCS, LakeTables
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, apply_pending
from tests.lake.replicas import asked

pytestmark = pytest.mark.slow

LARGE = b'{"a": "' + b"x" * (20 * 1024 * 1024) + b'"}'

DOCUMENTS = [
    # value, datatype, the document is JSON text, why it is no VARIANT
    (b'{"a": 1}', 1, True, None),
    (b'{"a": 1}', 0, True, None),
    (b"[1, 2", 0, False, "no JSON that Spark reads"),
    (b"1" * 1001, 1, True, "no JSON that Spark reads"),
    (b'{"a": 1, "a": 2}', 1, True, "duplicate keys"),
    (b"\xff\xfe", 0, False, "not UTF-8"),
    (b"", 0, False, "empty"),
    (LARGE, 1, True, "too large"),
    (b'{"a": 1, "b": ' + b"[" * 500 + b"]" * 500 + b"}", 0, True, None),
    (b"[" * 200_000 + b"]" * 200_000, 0, False, "no JSON that Spark reads"),
    (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, 0, False, "no JSON that Spark reads"),
]


XATTRS = '{"_sync": {"rev": 1}, "owner": "Ann", "size": 20, "none": null}'


def rows(lake: LakeTables, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.spark.sql(query).toArrow().to_pylist()
    return found


def test_documents_as_text_and_as_variant_with_the_reason_why_not(
    new_lake_in_memory: NewLake, view: Callable[[LakeTables], None]
) -> None:
    lake = new_lake_in_memory(1)
    view(lake)
    model = LogModel(lake, 1)
    [vb] = model.vbuckets
    model.write_snapshot(vb, len(DOCUMENTS))
    changes = [
        row
        | {"kind": "mutation", "value": value, "datatype": datatype, "key": f"k{number:02}"}
        | {"xattrs": XATTRS if number == 0 else None}
        for number, (row, (value, datatype, _, _)) in enumerate(
            zip(model.read(vb, 100, 1), DOCUMENTS, strict=True)
        )
    ]
    model.commit(model.next_round(changes))
    none = asked(lake, "SELECT 1 FROM documents JOIN documents_variant USING (key)")
    assert none.num_rows == 0, "the views follow the table"
    apply_pending(lake, [DOCS], 1, "w")
    texts = rows(lake, "SELECT document, value FROM documents ORDER BY key")
    variants = rows(
        lake,
        "SELECT document_null_reason AS reason, document IS NULL AS missing, "
        "variant_get(document, '$.a', 'int') AS a FROM documents_variant ORDER BY key",
    )
    for (value, _, is_json, reason), text, variant in zip(DOCUMENTS, texts, variants, strict=True):
        assert text["document"] == (value.decode() if is_json else None)
        assert text["value"] == value
        assert (variant["reason"], variant["missing"]) == (reason, reason is not None)
        if reason is None:
            assert variant["a"] == json.loads(value)["a"]
    maps = rows(lake, "SELECT xattrs FROM documents_variant ORDER BY key")
    wanted = [("_sync", '{"rev":1}'), ("owner", "Ann"), ("size", "20"), ("none", None)]
    assert [each["xattrs"] for each in maps] == [wanted, *[None] * (len(DOCUMENTS) - 1)]


def test_pending_changes_positions_and_rounds(
    new_lake_in_memory: NewLake, view: Callable[[LakeTables], None]
) -> None:
    lake = new_lake_in_memory(2)
    view(lake)
    model = LogModel(lake, 2)
    first, second = model.vbuckets
    model.write_snapshot(first, 4)
    model.write_snapshot(second, 6)
    model.commit(model.next_round(model.read(first, 4, 1)))
    apply_pending(lake, [DOCS], 1, "w")
    model.write_snapshot(first, 3)
    number = 2
    changes = model.read(first, 3, number) + model.read(second, 5, number)
    model.commit(model.next_round(changes))
    pending = asked(lake, "SELECT state, vbucket, seqno, `table` FROM pending_changes").to_pylist()
    states = {(row["vbucket"], int(row["seqno"])): row["state"] for row in pending}
    # The apply of round 1 is not in the log's index yet; the table's history tells of it.
    assert states == {(0, item.seqno): "complete" for item in first.items[4:]} | {
        (1, item.seqno): "incomplete" for item in second.items[:5]
    }
    positions = asked(lake, "SELECT * FROM positions ORDER BY vbucket").to_pylist()
    assert [row["round"] for row in positions] == [2, 2]
    assert [int(row["complete_seqno"]) for row in positions] == [
        vb.state.complete_seqno for vb in (first, second)
    ]
    listed = rounds(lake).selectExpr("round", "version", "vbuckets", "stored_bytes > 0 AS b")
    assert listed.toArrow().to_pylist() == [
        {"round": 1, "version": 1, "vbuckets": 1, "b": True},
        {"round": 2, "version": 2, "vbuckets": 2, "b": True},
    ]


def test_epochs_have_the_newest_order_before_them(
    new_lake_in_memory: NewLake, view: Callable[[LakeTables], None]
) -> None:
    lake = new_lake_in_memory(1)
    view(lake)
    model = LogModel(lake, 1)

    def order(epoch: int, to_seqno: int) -> dict[str, Any]:
        rollback = {"from_seqno": 2**64 - 1, "to_seqno": to_seqno, "from_vb_uuid": 2**63 + 1}
        return {"kind": "rollback", "vbucket": 0, "epoch": epoch, "rollback": rollback}

    def fork(epoch: int, seqno: int, reason: str) -> dict[str, Any]:
        row = {"kind": "rollback", "vbucket": 0, "epoch": epoch, "seqno": seqno}
        return row | {"detail": reason}

    for rows_of_round in (
        [order(1, 40)],
        [order(1, 30)],
        [fork(2, 20, "rollback"), order(2, 10)],
        [fork(3, 0, "resync")],
    ):
        number = model.round + 1
        model.commit(model.next_round([{**row, "round": number} for row in rows_of_round]))
    ordered = {"from_seqno": 2**64 - 1, "to_seqno": 30, "from_vb_uuid": 2**63 + 1}
    plain = dict.fromkeys(ordered)
    expected = [
        {"round": 4, "vbucket": 0, "epoch": 3, "reason": "resync", "fork_seqno": 0} | plain,
        {"round": 3, "vbucket": 0, "epoch": 2, "reason": "rollback", "fork_seqno": 20} | ordered,
    ]
    assert [each.to_json() for each in newest_epochs(lake, 9)] == expected
    assert newest_epochs(lake, 1) == newest_epochs(lake, 9)[:1]
    shown = asked(lake, "SELECT * FROM epochs ORDER BY epoch DESC").to_pylist()
    assert [each.pop("ordered_in_round") for each in shown] == [None, 2]
    assert [each.pop("server_failover_log") for each in shown] == [None, None]
    assert shown == expected


def test_a_look_up_by_key_reads_the_files_of_one_vbucket(new_lake: NewLake) -> None:
    lake = new_lake(2)
    register_views(lake)
    with session_settings_for_a_while(lake.spark, {"spark.sql.debug.maxToStringFields": "1000"}):
        [row] = rows(
            lake,
            "EXPLAIN SELECT * FROM docs_live WHERE vbucket = vbucket_of('airport_EDDB') "
            "AND key = 'airport_EDDB'",
        )
    [plan] = row.values()
    assert "EqualTo(key,airport_EDDB)" in plan, "the plan is cut short"
    assert "crc32" not in plan, "the function was not folded into a literal"
