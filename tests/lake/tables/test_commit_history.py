"""The origin of a version's rows, by the history alone."""

from datetime import UTC, datetime

import pytest

from dcp.errors import ForeignWriteError
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import TableCommit

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def apply(base: int, to_round: int) -> tuple[str, dict[str, object], None]:
    return (
        "MERGE",
        {"from_round": 0, "to_round": to_round, "read_version": base, "writer": "w"},
        None,
    )


def others(
    operation: str, restored: int | None = None
) -> tuple[str, dict[str, object], int | None]:
    return operation, {}, restored


CREATE = others("CREATE TABLE")


def traced(*commits: tuple[str, dict[str, object], int | None], first: int = 0) -> CommitHistory:
    made = [
        TableCommit(version, NOW, operation, ours, restored=restored)
        for version, (operation, ours, restored) in enumerate(commits, first)
    ]
    return CommitHistory(tuple(reversed(made)))


def test_maintenance_changes_nothing_and_an_apply_everything() -> None:
    made = traced(CREATE, others("OPTIMIZE"))
    assert (made.origin(1), made.since(), made.applied()) == (-1, -1, None)
    made = traced(CREATE, apply(0, 3), others("OPTIMIZE"), apply(2, 5), others("VACUUM END"))
    assert (made.origin(4), made.since(), made.defect(4)) == (3, 3, None)
    assert made.origin(2) == 1


def test_a_restore_takes_the_table_back_and_moves_the_fence_on() -> None:
    made = traced(
        CREATE, apply(0, 3), apply(1, 5), others("RESTORE", 1), others("OPTIMIZE"), apply(4, 9)
    )
    assert [made.origin(version) for version in (3, 4, 5)] == [1, 1, 5]
    assert made.defect(5) is None
    restored = CommitHistory(made.commits[1:])
    applied = restored.applied()
    assert applied is not None and applied.ours["to_round"] == 3
    assert restored.since() == 3
    assert traced(CREATE, apply(0, 3), others("RESTORE", 0)).applied() is None


@pytest.mark.parametrize(
    ("commits", "culprit", "sound"),
    [
        ((apply(0, 3), others("UPDATE")), 2, 1),
        ((others("WRITE"),), 1, 0),
        ((apply(0, 3), others("UPDATE"), apply(1, 5)), 2, 1),  # right before our apply
        ((apply(0, 3), others("DELETE"), others("OPTIMIZE"), apply(1, 5)), 2, 1),
        ((apply(0, 3), apply(1, 5), others("RESTORE", 1), apply(2, 9)), 3, 3),
        ((apply(0, 3), others("UPDATE"), others("RESTORE", 2)), 2, 1),
        ((apply(0, 3), others("RESTORE")), 2, 1),  # to a time: it names no version
    ],
)
def test_a_foreign_change_is_found_with_the_version_to_restore(
    commits: tuple[tuple[str, dict[str, object], int | None], ...], culprit: int, sound: int
) -> None:
    made = traced(CREATE, *commits)
    found = made.defect(made.newest)
    assert found is not None and found.version == culprit
    with pytest.raises(ForeignWriteError, match=rf"RESTORE TABLE t TO VERSION AS OF {sound}, or"):
        made.refuse_defect("docs", "t")
    remedied = traced(CREATE, *commits, others("RESTORE", sound))
    remedied.refuse_defect("docs", "t")
    assert remedied.since() == remedied.newest


def beat(base: int, **told: int) -> tuple[str, dict[str, object], None]:
    return "WRITE", {"read_version": base, "heartbeat": told}, None


def test_a_heartbeat_keeps_rows_and_tells_of_them() -> None:
    made = traced(CREATE, apply(0, 3), beat(1, to_round=3), others("OPTIMIZE"), apply(3, 5))
    assert [made.origin(version) for version in (1, 2, 3, 4)] == [1, 1, 1, 4]
    assert made.defect(4) is None
    assert [made.heartbeat_of(version) for version in (1, 3, 4)] == [
        None,
        {"to_round": 3},
        None,
    ]
    cut = CommitHistory(made.commits[:3])  # the apply is forgotten
    assert (cut.heartbeat_of(3), cut.origin(3)) == ({"to_round": 3}, 1)


def test_a_heartbeat_that_something_came_before_tells_nothing() -> None:
    late = traced(CREATE, apply(0, 3), apply(1, 5), beat(1, to_round=3))
    assert late.heartbeat_of(3) is None
    assert CommitHistory(late.commits[:1]).heartbeat_of(3) is None  # who knows what version 2 was
    with_rows = TableCommit(2, NOW, "WRITE", {"heartbeat": {}}, {"numOutputRows": "1"})
    assert not with_rows.keeps_rows
    assert traced(CREATE, apply(0, 3), others("WRITE")).defect(2) is not None


def test_what_a_cut_history_cannot_tell() -> None:
    cut = traced(others("OPTIMIZE"), others("OPTIMIZE"), first=7)
    assert (cut.origin(8), cut.since(), cut.is_conclusive, cut.defect(8)) == (6, None, False, None)
    assert traced(apply(6, 4), first=7).is_conclusive is False  # what was between is not here
    assert traced(others("OPTIMIZE"), apply(7, 4), first=7).is_conclusive is True
    assert traced(apply(6, 4), first=7).defect(7) is None
