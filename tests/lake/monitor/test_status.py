"""The words and the JSON of a lake's status."""

import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.change_log.changes import append_round
from dcp.lake.change_log.last_contact import LastContact, Minute, note_contact
from dcp.lake.monitor.figures_reader import FiguresReader
from dcp.lake.monitor.lake_figures import LakeFigures, ReplicaFigures
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.round_record import Outcome, VbucketReport, states_to_batch
from dcp.lake.tables.schema import CHANGES, RowKind
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.lake.task_board.task_metrics import task_exposition
from dcp.protocol.position import Position
from tests.lake.given_rows import given_rows
from tests.lake.memory_store import lake_in_memory
from tests.lake.task_board.test_board_files import READY, samples_of, watcher

AT = datetime(2026, 1, 31, 10, tzinfo=UTC)
NEW = LakeFigures(
    bucket="bucket",
    lake_id="id",
    location="/lake",
    vbuckets=1024,
    at=AT,
    round=1,
    round_at=None,
    rounds=(),
    last_contact=None,
    waiting=(),
    stuck=(),
    rollbacks=0,
    behind=(),
    replicas=(),
    tables=(),
    horizon_seconds=3600.0,
    warnings=(),
    requests=(),
    paused="",
)


def test_vbuckets_that_wait_for_the_same_thing_are_told_in_one_line() -> None:
    """In a first load most vbuckets wait for their turn."""
    detail = "a:1 reads its disk for other vbuckets first"
    waits = VbucketReport(
        0, Outcome.BUDGET, 0, 0, 0, 0, 0, 9, reason="waiting for its turn", detail=detail
    )
    stuck = [replace(waits, vbucket=vbucket) for vbucket in range(1, 900)]
    for number in (900, 902):
        told = f"a:1 sent nothing of it for 30.{number} s"
        stuck.append(replace(waits, vbucket=number, reason="waiting for data", detail=told))
    status = replace(NEW, waiting=(7,), stuck=tuple(stuck))
    lines = str(status).splitlines()
    assert lines[1:] == [
        "  no contact with the cluster yet",
        "  waiting for their snapshot's end: 1 vbuckets",
        f"  stand still: vbuckets 1-899: waiting for its turn (1: {detail})",
        "  stand still: vbuckets 900, 902: waiting for data "
        "(900: a:1 sent nothing of it for 30.900 s)",
    ]
    shown = status.to_json()
    assert shown["waiting"] == [7]
    assert (shown["stuck"][0]["vbucket"], shown["stuck"][0]["target_seqno"]) == (1, 9)


def test_tasks_have_the_metrics_of_top_with_the_labels_of_their_lake() -> None:
    older = watcher([READY], "dcplake-0a1b2c3d-r6-t2.0").stats()
    newer = replace(watcher([READY]).stats(), at=older.at + timedelta(seconds=1))
    of_lake = samples_of(NEW.exposition())
    found = samples_of(replace(NEW, tasks=(newer, older)).exposition())
    added = [each for each in found if each not in of_lake]
    for each in added:
        assert (each.labels.pop("bucket"), each.labels.pop("lake")) == ("bucket", "id")
    assert added == samples_of(task_exposition([newer]))
    assert replace(NEW, tasks=(newer,)).to_json()["tasks"] == [newer.to_json()]


def test_a_board_that_others_can_write_is_a_warning_and_hides_no_other_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    board = BoardFolder("lake")
    reader = FiguresReader(lake_in_memory(2), board, searches=True)
    assert reader.read(AT).warnings == ()
    board.make().parent.chmod(0o777)
    figures = reader.read(AT)
    assert (figures.tasks, figures.vbuckets) == ((), 2)
    [warning] = figures.warnings
    assert warning.startswith(f"{board.folder.parent}: found ") and "0o700" in warning


def test_a_board_that_cannot_be_read_is_a_warning_and_hides_no_other_figure(
    tmp_path: Path,
) -> None:
    board = BoardFolder("lake", str(tmp_path / ("n" * 300)))
    figures = FiguresReader(lake_in_memory(2), board, searches=True).read(AT)
    assert (figures.tasks, figures.vbuckets) == ((), 2)
    [warning] = figures.warnings
    assert "File name too long" in warning


def test_the_newest_contact_with_the_cluster_counts() -> None:
    lake = lake_in_memory(2)
    noted = LastContact(AT, 200.0, behind=0)
    note_contact(lake.store, noted)
    reader = FiguresReader(lake, BoardFolder("lake"), searches=True)
    for minutes, behind in ((-1, 0), (1, 7)):
        asked = LastContact(AT + timedelta(minutes=minutes), 200.0, behind=7)
        contact = reader.read(AT, ({}, asked)).last_contact
        assert contact is not None and contact.behind == behind


def test_a_round_is_a_contact_and_tells_what_it_left_to_the_next_one() -> None:
    lake = lake_in_memory(2)
    reports = (
        VbucketReport(0, Outcome.BUDGET, target_seqno=9),
        VbucketReport(1, Outcome.REACHED, target_seqno=5),
    )
    rows = [
        {"round": 1, "vbucket": each.vbucket, "kind": RowKind.STATUS, "detail": each.status()}
        for each in reports
    ]
    states = [
        replace(LakeVbucketState.beginning(vbucket), position=Position.complete_at(1, seqno))
        for vbucket, seqno in ((0, 4), (1, 5))
    ]
    batches = [pa.RecordBatch.from_pylist(rows, schema=CHANGES), states_to_batch(states, 1)]
    append_round(lake, given_rows(lake, pa.Table.from_batches(batches)), 1, "writer")
    figures = FiguresReader(lake, BoardFolder("lake"), searches=True).read(datetime.now(UTC))
    assert figures.last_contact is not None
    assert (figures.last_contact.time, figures.last_contact.behind) == (figures.round_at, 5)
    assert "5 seqnos were to be read then" in str(figures).splitlines()[1]
    told = [
        each for each in samples_of(figures.exposition()) if each.name.endswith("behind_seqnos")
    ]
    assert [each.value for each in told] == [5.0]


def test_the_age_of_look_round_and_apply_is_told_and_who_drives() -> None:
    def ago(minutes: float) -> datetime:
        return AT - timedelta(minutes=minutes)

    apply = TableCommit(3, ago(7), "MERGE", {"to_round": 2, "read_version": 2})
    commits = CommitHistory((apply, replace(apply, version=2, time=ago(9))))
    replica = ReplicaStatus("docs", AppliedVersion("docs", 3, 1, 2, 2), 3, commits)
    minutes = (Minute(7, rows=3), Minute(8))
    contact = LastContact(ago(0.2), 200.0, behind=1200, minutes=minutes)
    status = replace(
        NEW,
        round=2,
        replicas=(ReplicaFigures(replica, (), 5, 0, 1200, 11.5),),
        round_at=ago(8),
        last_contact=contact,
    )
    assert str(status).splitlines()[1] == (
        "  last contact with the cluster 12 s ago, last round 8 min ago, last apply 7 min ago; "
        "1,200 seqnos were to be read then"
    )
    told = status.to_json()
    assert told["is_driven"]
    assert told["replicas"] == [
        {
            "table": "docs",
            "version": 3,
            "round": 2,
            "applied_at": ago(7).isoformat(),
            "defect": "",
            "stale": [],
            "documents": 5,
            "undecodable_values": 0,
            "lag_seqnos": 1200,
            "lag_seconds": 11.5,
        }
    ]
    assert list(told["replicas"][0])[:6] == [
        "table", "version", "round", "applied_at", "defect", "stale",
    ]  # fmt: skip
    assert told["minutes"] == [{"minute": 7, "rows": 3}, {"minute": 8}]
    assert (told["location"], told["round_at"]) == ("/lake", ago(8).isoformat())
    dead = replace(status, last_contact=replace(contact, time=ago(192)))
    assert str(dead).splitlines()[1:3] == [
        "  no contact with the cluster for 3 h 12 min, last round 8 min ago, last apply 7 min ago",
        "    so the lag is unknown; dcplake run goes on from there",
    ]
    assert not dead.to_json()["is_driven"]
