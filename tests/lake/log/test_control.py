"""What the rows of ``control`` come to."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dcp.lake.log.control import ActionState, actions_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*states: tuple[str, str | None]) -> list[dict[str, Any]]:
    """Return rows of one request, of these actions and states, a second apart."""
    return [
        {
            "id": "a",
            "time": START + timedelta(seconds=index),
            "who": "ann",
            "action": action,
            "vbuckets": "0-3",
            "options": None,
            "state": state,
            "round": 10 + index,
            "detail": f"row {index}",
        }
        for index, (action, state) in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("states", "state", "begun_round", "is_to_be_cancelled"),
    [
        ([("backfill", None)], "requested", 0, False),
        ([("backfill", "requested")], "requested", 0, False),
        ([("backfill", "nonsense")], "requested", 0, False),
        ([("backfill", None), ("backfill", "begun")], "begun", 11, False),
        ([("backfill", None), ("backfill", "begun"), ("backfill", "begun")], "begun", 11, False),
        ([("backfill", None), ("backfill", "refused")], "refused", 0, False),
        ([("backfill", None), ("cancel", None)], "requested", 0, True),
        ([("cancel", None), ("backfill", None)], "requested", 0, True),
        (
            [("backfill", None), ("backfill", "begun"), ("cancel", None), ("backfill", "done")],
            "done",
            11,
            True,
        ),
        (
            [("backfill", None), ("backfill", "done"), ("backfill", "incomplete")],
            "done",
            0,
            False,
        ),
    ],
)
def test_the_rows_of_a_request(
    states: list[tuple[str, str | None]], state: str, begun_round: int, is_to_be_cancelled: bool
) -> None:
    written = rows(*states)
    [action] = actions_of(reversed(written))
    assert action.state is ActionState(state)
    assert (action.begun_round, action.is_to_be_cancelled) == (begun_round, is_to_be_cancelled)
    assert (action.action, action.vbuckets, action.who) == ("backfill", "0-3", "ann")
    assert action.is_open is (state in {"requested", "begun"})


def test_rows_without_an_id_or_that_only_cancel_are_no_request() -> None:
    nobody = rows(("backfill", None))
    nobody[0]["id"] = None
    assert actions_of([*nobody, *rows(("cancel", None))]) == ()


def test_requests_come_oldest_first() -> None:
    later = [row | {"id": "b", "time": START + timedelta(hours=1)} for row in rows(("x", None))]
    assert [each.id for each in actions_of([*later, *rows(("x", None))])] == ["a", "b"]
