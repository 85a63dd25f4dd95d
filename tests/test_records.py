"""Records are read from rows and JSON as they were written, exact over all 64 bits."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, get_args, get_origin

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.change_log.applied import (
    ReplicaStatus,
    applied_of,
    applied_of_version,
    heartbeat_content,
)
from dcp.lake.change_log.control import ControlRequest
from dcp.lake.change_log.last_contact import LastContact, Minute
from dcp.lake.change_log.system_event_detail import SystemEventDetail
from dcp.lake.config.flow_control_settings import WindowPlan
from dcp.lake.query.cuts import Cut
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.store.log_slice import LogSlice, Undo
from dcp.lake.tables.applied_version import AppliedVersion, StaleVbucket
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import HEARTBEAT, METADATA_KEY, TableCommit, metadata_json
from dcp.lake.tables.quality_check import QualityCheck
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.lake.tables.schema import columns_of
from dcp.lake.tables.undone_key import DocumentState
from dcp.lake.tables.vbucket_state import LakeVbucketState, RollbackOrder
from dcp.lake.task_board.task_stats import TaskStats
from dcp.lake.verify.stream import StreamEnding
from dcp.protocol.position import Position
from dcp.records import bare, brief, marked, plain, read, row_of, stored_fields
from dcp.server.storage.saved_vbucket import SavedVbucket
from dcp.types import FailoverEntry, FailoverLog

U64 = st.integers(0, 2**64 - 1)
INTEGERS = {pa.int32(): st.integers(0, 1023), pa.int64(): st.integers(1, 2**63 - 1), None: U64}
OF_KIND: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    bytes: st.binary(max_size=5),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Position: st.builds(Position.complete_at, st.integers(1, 2**64 - 1), U64),
    FailoverLog: st.lists(U64, min_size=1, max_size=3).map(
        lambda seqnos: FailoverLog(
            tuple(FailoverEntry(2**64 - 1 - each, each) for each in sorted(seqnos, reverse=True))
        )
    ),
    RollbackOrder: st.tuples(U64, U64, U64).map(
        lambda told: RollbackOrder(max(told[:2]), min(told[:2]), told[2])
    ),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of a field, by its type; a record's are those of all its fields."""
    kind, may_be_none = bare(annotation)
    found: st.SearchStrategy[Any]
    if kind is int:
        found = INTEGERS[marked(annotation, pa.DataType)]
    elif kind in OF_KIND:
        found = OF_KIND[kind]
    elif get_origin(kind) is tuple:
        found = st.builds(tuple, st.lists(values(get_args(kind)[0]), max_size=2))
    elif get_origin(kind) is Mapping:
        found = st.dictionaries(*map(values, get_args(kind)), max_size=2)
    elif issubclass(kind, Enum):
        found = st.sampled_from(kind)
    else:
        found = st.builds(kind, **{each: values(hint) for each, _, hint in stored_fields(kind)})
    return st.none() | found if may_be_none else found


def some(*kinds: Any) -> st.SearchStrategy[Any]:
    return st.one_of(*map(values, kinds))


@given(
    some(
        LakeVbucketState,
        RollbackOrder,
        VbucketReport,
        TaskStats,
        StreamEnding,
        Position,
        AppliedVersion,
        SavedVbucket,
        SystemEventDetail,
    )
)
def test_json_of_a_record_is_read_as_it_was_written(record: Any) -> None:
    assert read(type(record), json.loads(json.dumps(plain(record)))) == record
    assert read(type(record), json.loads(json.dumps(brief(record)))) == record


@given(some(LakeVbucketState, RollbackOrder, DocumentState, Position, AppliedVersion, QualityCheck))
def test_rows_of_a_record_are_read_as_they_were_written(record: Any) -> None:
    schema = pa.schema(columns_of(type(record)))
    [row] = pa.RecordBatch.from_pylist([row_of(record)], schema=schema).to_pylist()
    assert read(type(record), row) == record


def test_times_are_read_from_json_as_they_were_written() -> None:
    cut = Cut(3, datetime(2026, 1, 31, tzinfo=UTC), {"docs": 4})
    assert read(Cut, json.loads(json.dumps(plain(cut)))) == cut


@given(values(VbucketReport))
def test_a_status_row_is_read_as_it_was_written(report: VbucketReport) -> None:
    assert VbucketReport.parse(report.vbucket, report.status()) == report


def test_what_the_history_forgot_of_an_apply_is_whole_in_a_heartbeat() -> None:
    log_slice = LogSlice((), 4, 9, 8, (Undo(1, 3, 2**64 - 1),), (2,), (1,), {5: 3, 4: 2})
    content = plain(AppliedVersion("docs", 11, 0, 7, 7).after(log_slice))
    ours = json.loads(metadata_json(content))[METADATA_KEY]
    now = datetime(2026, 1, 1, tzinfo=UTC)
    applied = applied_of("docs", TableCommit(12, now, "MERGE", ours))
    stale = (StaleVbucket(4, 2), StaleVbucket(5, 3))
    assert (applied.version, applied.from_round, applied.stale_vbuckets) == (12, 7, stale)
    assert [applied.round_of(vbucket) for vbucket in range(3, 7)] == [9, 2, 3, 9]
    told = heartbeat_content(ReplicaStatus("docs", applied, 12, CommitHistory(())))
    heard = json.loads(metadata_json({HEARTBEAT: told}))[METADATA_KEY]
    kept = CommitHistory((TableCommit(14, now, "WRITE", {"read_version": 13, **heard}),))
    kept = replace(kept, commits=(*kept.commits, TableCommit(13, now, "OPTIMIZE")))
    assert applied_of_version("docs", kept, 14) == applied


def test_a_row_and_json_have_their_own_fields() -> None:
    asked = ControlRequest(
        id="a", action="pause", time=datetime(2026, 1, 1, tzinfo=UTC), options="{}"
    )
    assert row_of(asked)["time"] == asked.time
    assert not {"time", "options", "round"} & plain(asked).keys()
    made = AppliedVersion("docs", 3, 1, 2, 2, inserted=7)
    assert plain(made)["inserted"] == 7
    assert "inserted" not in row_of(made).keys() | {
        each.name for each in columns_of(AppliedVersion)
    }


def test_defaults_that_a_brief_record_lacks_are_read() -> None:
    contact = LastContact(
        datetime(2026, 1, 1, tzinfo=UTC), 7.5, 2, minutes=(Minute(3), Minute(4, 1))
    )
    assert brief(contact)["minutes"] == [{"minute": 3}, {"minute": 4, "rounds": 1}]
    assert read(LastContact, json.loads(json.dumps(brief(contact)))) == contact


def test_a_property_is_stored_under_the_text_that_marks_its_result() -> None:
    report = RoundReport(3, 4, 1.5, (VbucketReport(1, Outcome.REACHED, rows=2, frame_bytes=7),), ())
    told = report.to_json()
    assert (told["rows"], told["bytes"], told["window_full"]) == (2, 7, 0.0)
    assert not {"frame_bytes", "incomplete"} & told.keys()


def test_a_row_of_an_older_lake_gives_new_fields_their_defaults() -> None:
    told = plain(LakeVbucketState.beginning(3))
    older = told | {"caught_up_seqno": None, "fruitless_rollbacks": None}
    del older["start_seqno"]
    assert read(LakeVbucketState, older) == LakeVbucketState.beginning(3)
    windows = plain(WindowPlan("static", 0, 1, 10, 10))
    sample = {"format": 3, "task": "t", "round": 1, "bottleneck_seconds": None, "windows": windows}
    task = TaskStats.from_json(sample)
    assert task.bottleneck_seconds == {}
    left_out = VbucketReport.parse(7, '{"outcome": "left_out", "reason": "x", "largest_bytes": 0}')
    assert (left_out.outcome, left_out.rows, left_out.reason) == (Outcome.LEFT_OUT, 0, "x")


@pytest.mark.parametrize("told", [{}, {"vbucket": 1}, {"vbucket": "x", "reason": ""}])
def test_what_is_no_such_record_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        read(LakeVbucketState, told)


def test_any_name_marks_a_field() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        first: Annotated[str, "told"]
        second: Annotated[str, "stored"] = "x"

    assert plain(Named("a")) == {"told": "a", "stored": "x"} == row_of(Named("a"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("number", 1.5), ("number", True), ("share", 10**400), ("share", True), ("flag", "no")],
)
def test_a_value_of_another_type_is_refused(field: str, value: object) -> None:
    @dataclass(frozen=True, slots=True)
    class Typed:
        number: int = 0
        share: float = 0.0
        flag: bool = False

    assert read(Typed, {"number": 2.0, "share": 3, "flag": True}) == Typed(2, 3, True)
    with pytest.raises((TypeError, ValueError)):
        read(Typed, {field: value})
    with pytest.raises(TypeError, match="found list, expected an object"):
        read(Typed, [1])
