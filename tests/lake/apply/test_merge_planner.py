"""Whether a replica gets a commit, decided without Spark or tables."""

from dataclasses import replace

import pytest

from dcp.lake.apply.merge_input import MergeInput
from dcp.lake.apply.merge_planner import EMPTY_ROUNDS, CommitReason, commit_reason
from dcp.lake.apply.typed_plan import UNTYPED, ColumnChange, TypedPlan
from dcp.lake.change_log.touched_keys import Touched
from dcp.lake.store.log_slice import EMPTY_TABLE, LogSlice, Undo
from dcp.lake.tables.applied_version import AppliedVersion, StaleVbucket

HELD = AppliedVersion("docs", 3, from_round=1, to_round=7, log_from_round=7)
NEXT = LogSlice(ranges=(), first_round=8, to_round=8, log_from_round=8)
ONE_KEY = Touched({(0, "key"): None})
OTHER_COLUMNS = TypedPlan(change=ColumnChange.REWRITE)
LATE = replace(NEXT, to_round=HELD.to_round + EMPTY_ROUNDS)
UNDONE = replace(NEXT, undone=(Undo(0, EMPTY_TABLE, 5),))


@pytest.mark.parametrize(
    ("log_slice", "keys", "typed", "expected"),
    [
        (NEXT, ONE_KEY, UNTYPED, CommitReason.ROWS),
        (NEXT, None, UNTYPED, CommitReason.ROWS),  # too many to name
        (replace(NEXT, stale={2: 7}), Touched(), UNTYPED, CommitReason.ROWS),
        (NEXT, Touched(), UNTYPED, None),
        (replace(LATE, to_round=LATE.to_round - 1), Touched(), UNTYPED, None),
        (LATE, Touched(), UNTYPED, CommitReason.MOVE),
        (UNDONE, Touched(), UNTYPED, CommitReason.MOVE),
        (NEXT, Touched(), OTHER_COLUMNS, CommitReason.COLUMNS),
        (NEXT, ONE_KEY, OTHER_COLUMNS, CommitReason.ROWS),
    ],
)
def test_a_table_is_due_for_rows_after_many_rounds_and_for_its_columns(
    log_slice: LogSlice, keys: Touched | None, typed: TypedPlan, expected: CommitReason | None
) -> None:
    found = MergeInput(log_slice, keys, ())
    assert commit_reason(HELD, found, typed, is_applied=True) is expected


def test_a_vbucket_that_is_stale_no_longer_makes_a_table_due() -> None:
    held = replace(HELD, stale_vbuckets=(StaleVbucket(2, 5),))
    found = MergeInput(NEXT, Touched(), ())
    assert commit_reason(held, found, UNTYPED, is_applied=True) is CommitReason.ROWS


@pytest.mark.parametrize(
    ("typed", "is_applied", "expected"),
    [
        (UNTYPED, True, None),
        (OTHER_COLUMNS, True, CommitReason.COLUMNS),
        (OTHER_COLUMNS, False, None),
    ],
)
def test_without_news_only_a_table_with_rows_gets_other_columns(
    typed: TypedPlan, is_applied: bool, expected: CommitReason | None
) -> None:
    assert commit_reason(HELD, None, typed, is_applied=is_applied) is expected
