"""What the rows of ``control`` come to."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dcp.lake.adapters.opening import refuse_to_start
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.control import (
    CONTROL,
    Control,
    ControlRequest,
    RequestAction,
    RequestState,
    requests_of,
)
from dcp.lake.config.table_names import CONTROL_TABLE
from dcp.lake.tables.history import history
from dcp.lake.tables.schema import spark_ddl
from tests.lake.conftest import NewLake

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
    ("states", "state", "round_number", "is_to_be_cancelled"),
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
        ([("backfill", None), ("backfill", "done"), ("cancel", None)], "done", 0, True),
        (
            [("backfill", None), ("cancel", "refused"), ("backfill", "done"), ("cancel", None)],
            "done",
            0,
            False,
        ),
        ([("backfill", None), ("cancel", None), ("backfill", "cancelled")], "cancelled", 0, False),
        (
            [("backfill", None), ("backfill", "done"), ("backfill", "incomplete")],
            "done",
            0,
            False,
        ),
    ],
)
def test_the_rows_of_a_request(
    states: list[tuple[str, str | None]], state: str, round_number: int, is_to_be_cancelled: bool
) -> None:
    written = rows(*states)
    [request] = requests_of(reversed(written))
    assert request.state is RequestState(state)
    assert (request.round, request.is_to_be_cancelled) == (round_number, is_to_be_cancelled)
    assert (request.action, request.vbuckets, request.who) == ("backfill", "0-3", "ann")
    assert request.is_open is (state in {"requested", "begun"})


@pytest.mark.parametrize("no_id", [None, ""])
def test_rows_without_an_id_are_no_request(no_id: str | None) -> None:
    assert requests_of(row | {"id": no_id} for row in rows(("backfill", None))) == ()


def test_a_cancel_of_nothing_is_a_request_to_be_refused() -> None:
    [request] = requests_of(rows(("cancel", None)))
    assert (request.action, request.is_open, request.is_to_be_cancelled) == ("cancel", True, False)
    [request] = requests_of(rows(("cancel", None), ("cancel", "refused"), ("cancel", None)))
    assert (request.state, request.is_to_be_cancelled) == (RequestState.REFUSED, True)


def test_who_did_not_tell_their_name_is_nobody_else() -> None:
    [request] = requests_of(row | {"who": None} for row in rows(("pause", None)))
    assert request.who == "(unknown)"


def test_requests_come_oldest_first() -> None:
    later = [row | {"id": "b", "time": START + timedelta(hours=1)} for row in rows(("x", None))]
    assert [each.id for each in requests_of([*later, *rows(("x", None))])] == ["a", "b"]


@pytest.mark.slow
def test_requests_without_spark_and_those_in_sql_go_into_one_table(new_lake: NewLake) -> None:
    lake = new_lake(1)
    without = replace(lake, store=SparkStore(refuse_to_start, lake.location))
    control = Control(without)

    def ask() -> str:
        asked = ControlRequest.new(RequestAction.PAUSE, None, {})
        control.write(asked, RequestState.REQUESTED)
        return asked.id

    first = ask()
    table = lake.table(CONTROL_TABLE)
    lake.spark.sql(f"INSERT INTO {table.sql} (id, action) VALUES ('sql', 'resume')")
    second = ask()
    assert {each.id for each in control.requests()} == {first, "sql", second}
    assert history(table)[0].ours == {"lake": lake.identity.lake_id, "control": second}
    asked = {first, "sql", second, *(ask() for _ in range(3))}
    assert any(each.is_optimize for each in history(table)), "many small files became one"
    by_spark = lake.spark.newSession().sql(f"SELECT id FROM {table.sql}").collect()
    assert sorted(row.id for row in by_spark) == sorted(asked)
    shutil.rmtree(lake.location.path(CONTROL_TABLE))
    columns = spark_ddl(CONTROL)
    ours = f"'dcplake.lake' = '{lake.identity.lake_id}'"
    lake.spark.sql(f"CREATE TABLE {table.sql} ({columns}) USING delta TBLPROPERTIES ({ours})")
    assert [ask()] == [each.id for each in control.requests()], "one that Spark made"
