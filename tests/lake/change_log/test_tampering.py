"""Changes of others to the tables, detected by the histories alone."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dcp.errors import LakeError
from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.change_log.tampering import (
    is_conclusive,
    refuse_log_behind,
    refuse_tampering,
    short_vacuums,
)
from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.horizon import Horizon

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)

Made = tuple[str, dict[str, Any], int | None]


def round_(number: int, base: int | None = None) -> Made:
    ours: dict[str, Any] = {"round": number, "writer": "w"}
    return "WRITE", ours if base is None else ours | {"read_version": base}, None


def theirs(operation: str, restored: int | None = None) -> Made:
    return operation, {}, restored


CREATE = theirs("CREATE TABLE")
OPTIMIZE = theirs("OPTIMIZE")
BEAT: Made = ("WRITE", {"heartbeat": {}}, None)
CLEAN: Made = ("DELETE", {"cleaned": 3}, None)
ACCEPT: Made = ("WRITE", {"resync": True}, None)


def log(*made: Made, first: int = 0) -> list[TableCommit]:
    commits = [
        TableCommit(version, NOW, operation, ours, restored=restored)
        for version, (operation, ours, restored) in enumerate(made, first)
    ]
    return commits[::-1]


@pytest.mark.parametrize(
    "made",
    [
        (),
        (CREATE,),
        (CREATE, OPTIMIZE, BEAT),
        (CREATE, round_(1), OPTIMIZE, round_(2, 2), BEAT, CLEAN, theirs("VACUUM END")),
        (CREATE, round_(1), theirs("DELETE"), theirs("RESTORE", 1)),  # mended
        (CREATE, round_(1), theirs("DELETE"), theirs("RESTORE", 1), round_(2, 3)),
        (CREATE, round_(1), theirs("DELETE"), ACCEPT, round_(2, 3)),
        (CREATE, round_(1), round_(2), theirs("RESTORE", 1), theirs("RESTORE", 2)),
    ],
)
def test_what_is_ours_or_keeps_rows_is_sound(made: tuple[Made, ...]) -> None:
    refuse_tampering("lake", "t", log(*made))


@pytest.mark.parametrize(
    ("made", "culprit", "sound"),
    [
        *(
            ((CREATE, round_(1), theirs(operation), OPTIMIZE, BEAT), 2, 1)
            for operation in ("DELETE", "TRUNCATE", "UPDATE", "MERGE", "WRITE", "REPLACE TABLE")
        ),
        ((CREATE, theirs("WRITE")), 1, None),
        ((CREATE, round_(1), round_(2), theirs("RESTORE", 1)), 3, 2),
        ((CREATE, round_(1), round_(2), theirs("RESTORE")), 3, 2),  # to a time
        ((CREATE, round_(1), theirs("DELETE"), theirs("RESTORE", 0)), 2, 1),
        ((CREATE, round_(1), theirs("DELETE"), round_(2, 1)), 2, None),  # in the very moment
        ((CREATE, round_(1), CLEAN, theirs("RESTORE", 1)), 3, 2),  # what was cleaned came back
    ],
)
def test_a_change_of_others_is_found(
    made: tuple[Made, ...], culprit: int, sound: int | None
) -> None:
    with pytest.raises(LakeError, match=rf"table changes: version {culprit} .*dcplake resync") as e:
        refuse_tampering("lake", "t", log(*made))
    assert (f"RESTORE TABLE t TO VERSION AS OF {sound}," in str(e.value)) is (sound is not None)
    if sound is not None:
        mended = (*made, theirs("RESTORE", sound))
        refuse_tampering("lake", "t", log(*mended))
    else:
        assert "RESTORE TABLE" not in str(e.value)


def test_a_beat_of_somebody_else_is_none() -> None:
    commits = log(CREATE, round_(1), BEAT)
    refuse_tampering("lake", "t", commits)
    rows = TableCommit(3, NOW, "WRITE", {"heartbeat": {}}, {"numOutputRows": "1"})
    with pytest.raises(LakeError, match="table changes: version 3 "):
        refuse_tampering("lake", "t", [rows, *commits])


def test_how_far_back_one_must_look() -> None:
    assert is_conclusive(log(CREATE, OPTIMIZE))
    assert not is_conclusive(log(OPTIMIZE, first=3))
    assert is_conclusive(log(round_(7, 2), OPTIMIZE, first=2 + 1)) is False
    assert is_conclusive(log(OPTIMIZE, round_(7, 3), OPTIMIZE, first=3))
    refuse_tampering("lake", "t", log(OPTIMIZE, BEAT, first=300))  # older commits are forgotten
    with pytest.raises(LakeError, match="table changes: version 301 "):
        refuse_tampering("lake", "t", log(OPTIMIZE, theirs("DELETE"), first=300))


def vacuum(hours_ago: float, kept_hours: float) -> TableCommit:
    time = NOW - timedelta(hours=hours_ago)
    return TableCommit(4, time, "VACUUM START", retention_seconds=kept_hours * 3600)


@pytest.mark.parametrize(
    ("hours_ago", "kept_hours", "is_short"),
    [
        (1, 24, False),
        (1, 0, True),
        (1, 22.9, True),
        (1, 23.1, False),  # what it took was replaced 24.1 hours ago
        (23.9, 0, True),
        (24.1, 0, False),  # what it took would be beyond the horizon by now
        (20, 5, False),
    ],
)
def test_a_vacuum_that_kept_too_little(hours_ago: float, kept_hours: float, is_short: bool) -> None:
    found = [*short_vacuums("docs", [vacuum(hours_ago, kept_hours)], Horizon.of_hours(24), NOW)]
    assert bool(found) is is_short
    for each in found:
        assert each.startswith("table docs: ")
        assert "(VACUUM START, " in each and "of the horizon's 24 hours" in each


def test_a_replica_ahead_of_the_log_is_found() -> None:
    status = cast(ReplicaStatus, SimpleNamespace(round=8, version=31))
    refuse_log_behind("lake", 8, {"docs": status})
    message = r"round 7 as the newest of changes, but table docs at round 8 \(version 31\)"
    with pytest.raises(LakeError, match=message):
        refuse_log_behind("lake", 7, {"docs": status})
