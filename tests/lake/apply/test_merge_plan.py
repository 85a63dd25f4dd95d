"""The decisions of an apply as functions of facts, without Spark or tables, and their texts."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from dcp.lake.adapters.apply_sql import lost_rows_sql
from dcp.lake.apply.merge_plan import (
    EMPTY_ROUNDS,
    LARGE_DOCUMENT_BYTES,
    TABLE_BYTES_BY_NAMED_KEY,
    CommitReason,
    MergePlan,
    RowReader,
    commit_reason,
    pays_to_name,
    row_reader,
)
from dcp.lake.apply.slice_rules import no_slice
from dcp.lake.apply.typed_plan import UNTYPED, ColumnChange, TypedPlan
from dcp.lake.change_log.touched_keys import MERGE_SOURCE, RowReference, Touched
from dcp.lake.config.contracts import ContractMode
from dcp.lake.store.log_slice import EMPTY_TABLE, REPLACED, LogSlice, RowRange, Undo
from dcp.lake.store.merge import LogRows
from dcp.lake.tables.applied_version import AppliedVersion, StaleVbucket
from dcp.lake.tables.typed_columns import TypedColumns
from tests.lake.memory_store import MemoryStore

CURRENT = AppliedVersion("docs", 3, from_round=1, to_round=7, log_from_round=7)
NEXT = LogSlice(ranges=(), first_round=8, to_round=8, log_from_round=8)
ONE_KEY = Touched({(0, "key"): None})
OTHER_COLUMNS = TypedPlan(change=ColumnChange.REWRITE)
LATE = replace(NEXT, to_round=CURRENT.to_round + EMPTY_ROUNDS)
UNDONE = replace(NEXT, undone=(Undo(0, EMPTY_TABLE, 5),))
STALE = replace(CURRENT, stale_vbuckets=(StaleVbucket(2, 5),))
NOTHING = no_slice(CURRENT)


@pytest.mark.parametrize(
    ("log_slice", "keys", "typed", "expected"),
    [
        (NEXT, ONE_KEY, UNTYPED, CommitReason.ROWS),
        (NEXT, None, UNTYPED, CommitReason.ROWS),  # too many to name
        (replace(NEXT, stale={2: 7}), Touched(), UNTYPED, CommitReason.ROWS),
        (NEXT, Touched(), UNTYPED, CommitReason.NONE),
        (replace(LATE, to_round=LATE.to_round - 1), Touched(), UNTYPED, CommitReason.NONE),
        (LATE, Touched(), UNTYPED, CommitReason.MOVE),
        (UNDONE, Touched(), UNTYPED, CommitReason.MOVE),
        (NEXT, Touched(), OTHER_COLUMNS, CommitReason.COLUMNS),
        (NEXT, ONE_KEY, OTHER_COLUMNS, CommitReason.ROWS),
        (NOTHING, Touched(), UNTYPED, CommitReason.NONE),
        (NOTHING, Touched(), OTHER_COLUMNS, CommitReason.COLUMNS),
    ],
)
def test_a_table_is_due_for_rows_after_many_rounds_and_for_its_columns(
    log_slice: LogSlice, keys: Touched | None, typed: TypedPlan, expected: CommitReason
) -> None:
    assert commit_reason(CURRENT, log_slice, keys, typed, is_applied=True) is expected


def test_a_vbucket_that_is_stale_no_longer_makes_a_table_due() -> None:
    due = commit_reason(STALE, NEXT, Touched(), UNTYPED, is_applied=True)
    assert due is CommitReason.ROWS
    due = commit_reason(STALE, no_slice(STALE), Touched(), UNTYPED, is_applied=True)
    assert due is CommitReason.NONE


@pytest.mark.parametrize(
    ("log_slice", "expected"),
    [
        (NOTHING, CommitReason.NONE),
        (replace(NEXT, ranges=(RowRange(0, 0, 0, 5),)), CommitReason.COLUMNS),
    ],
)
def test_a_table_without_an_apply_gets_other_columns_only_if_the_log_has_rows(
    log_slice: LogSlice, expected: CommitReason
) -> None:
    due = commit_reason(CURRENT, log_slice, Touched(), OTHER_COLUMNS, is_applied=False)
    assert due is expected


@pytest.mark.parametrize(
    ("keys", "table_bytes", "expected"),
    [
        (ONE_KEY, 8 * TABLE_BYTES_BY_NAMED_KEY, True),
        (ONE_KEY, 8 * TABLE_BYTES_BY_NAMED_KEY - 1, False),
        (Touched({(0, "a"): None, (0, "b"): None}), 8 * TABLE_BYTES_BY_NAMED_KEY, False),
        (Touched({(0, "a"): None, (1, "b"): None}), 8 * TABLE_BYTES_BY_NAMED_KEY, True),
        (Touched(), 2**40, False),
    ],
)
def test_keys_are_named_if_their_vbuckets_have_many_bytes_for_each(
    keys: Touched, table_bytes: int, *, expected: bool
) -> None:
    assert pays_to_name(keys, table_bytes, vbucket_count=8) is expected


NO_ROWS = MERGE_SOURCE.empty_table()


@pytest.mark.parametrize(
    ("keys", "olds", "largest_bytes", "expected"),
    [
        (ONE_KEY, [NO_ROWS], LARGE_DOCUMENT_BYTES, RowReader.DRIVER),
        (ONE_KEY, [NO_ROWS], LARGE_DOCUMENT_BYTES + 1, RowReader.SPARK_FOR_LARGE),
        (ONE_KEY, [NO_ROWS, None], None, RowReader.SPARK_FOR_BYTES),
        (None, [], None, RowReader.SPARK_FINDS_KEYS),
    ],
)
def test_this_process_reads_the_rows_of_few_keys_with_small_documents(
    keys: Touched | None,
    olds: list[pa.Table | None],
    largest_bytes: int | None,
    expected: RowReader,
) -> None:
    def read(_: Touched) -> int:
        assert largest_bytes is not None, "it decides nothing, and costs a query"
        return largest_bytes

    assert row_reader(keys, olds, read) is expected


@pytest.mark.parametrize("without_repeats", [frozenset[int](), frozenset({1})])
def test_rows_that_may_have_repeats_need_the_relation_of_their_keys(
    without_repeats: frozenset[int],
) -> None:
    ranges = tuple(RowRange(vbucket, 1, 0, 5) for vbucket in (0, 1))
    with pytest.raises(ValueError, match="no relation"):
        LogRows("changes", 5, 0, replace(NEXT, ranges=ranges), "", without_repeats)


def test_a_plan_tells_every_decision_as_json() -> None:
    rows = LogRows("changes", 5, 0, NEXT, "", frozenset({3, 1}))
    plan = MergePlan(
        CURRENT,
        NEXT,
        None,
        since_version=3,
        rows=rows,
        reader=RowReader.SPARK_FINDS_KEYS,
        typed=OTHER_COLUMNS,
        largest_bytes=70,
    )
    told = json.loads(json.dumps(plan.to_json()))
    assert (told.pop("current")["to_round"], told.pop("log_slice")["to_round"]) == (7, 8)
    assert told == {
        "since_version": 3,
        "reason": CommitReason.ROWS,
        "reader": RowReader.SPARK_FINDS_KEYS,
        "names_keys": False,
        "is_first": False,
        "largest_bytes": 70,
        "touched_keys": None,
        "without_repeats": [1, 3],
        "typed_columns": "the typed columns go",
    }


def test_a_key_without_a_live_row_gets_the_older_one_or_is_deleted() -> None:
    def rows(*given: tuple[str, bytes]) -> pa.Table:
        told = [
            {"vbucket": 1, "key": key, "value": value, "deleted": False} for key, value in given
        ]
        return pa.Table.from_pylist(told, MERGE_SOURCE)

    lost = "(VALUES (1, 'gone'), (1, 'old')) AS w(vbucket, key)"
    # The version has a row of "new" as well, since a restored vbucket is read whole.
    old = rows(("old", b"1"), ("new", b"1")).to_batches()
    found = MemoryStore().run(lost_rows_sql(lost, "SELECT * FROM old"), {"old": old})
    assert {(row["key"], row["value"], row["deleted"]) for row in found.to_pylist()} == {
        ("old", b"1", False),
        ("gone", None, True),
    }


TYPED = TypedColumns(pa.struct([("a", pa.int64()), ("b", pa.string())]), "f", ContractMode.EVOLVE)


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (NEXT, "rounds 8 to 8: 0 ranges of rows in 0 vbuckets"),
        (
            LogSlice(
                ranges=(RowRange(3, 0, 4, 9), RowRange(3, 1, 9, 12)),
                first_round=2,
                to_round=8,
                log_from_round=8,
                undone=(Undo(3, 1, 5), Undo(4, 2, 6), Undo(7, REPLACED, 0)),
                cleared=(5,),
                revived=(4,),
                stale={9: 1, 8: 1},
            ),
            "rounds 2 to 8: 2 ranges of rows in 4 vbuckets; vbuckets 3-4 go back (oldest version "
            "1); vbuckets 7 are replaced; vbuckets 5 were flushed or dropped; vbuckets 4 lose a "
            "flush or drop; vbuckets 8-9 stay stale",
        ),
        (
            replace(NEXT, begins_anew=True),
            "rounds 8 to 8: 0 ranges of rows in 0 vbuckets; every vbucket began anew",
        ),
        (Touched(), "0 touched keys in 0 vbuckets"),
        (
            Touched(
                {(0, "a"): None, (0, "b"): RowReference(1, 0, 1), (2, "c"): RowReference(2, 0, 1)}
            ),
            "3 touched keys in 2 vbuckets, 1 without a live row",
        ),
        (UNTYPED, "no typed columns"),
        (OTHER_COLUMNS, "the typed columns go"),
        (TypedPlan(TYPED, is_typed=True), "2 typed fields, as the table has them"),
        (TypedPlan(TYPED, ColumnChange.ADD), "2 typed fields, added before the first rows"),
        (TypedPlan(TYPED, ColumnChange.EXTEND), "2 typed fields, some new"),
        (
            TypedPlan(TYPED, ColumnChange.REWRITE),
            "2 typed fields, all rows rewritten",
        ),
        (CommitReason.NONE, "it waits for further rounds"),
        (
            MergePlan(CURRENT, NEXT, ONE_KEY, since_version=3, rows=MERGE_SOURCE.empty_table()),
            "apply docs: round 7 -> 8, 1 touched keys in 1 vbuckets, 1 without a live row, by hash "
            "join, reading rounds 8 to 8: 0 ranges of rows in 0 vbuckets",
        ),
    ],
)
def test_each_decision_prints(decision: object, told: str) -> None:
    assert str(decision) == told
