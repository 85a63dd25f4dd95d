"""Requests of the table ``control`` and a driver that is overtaken before or as it repairs."""

from dataclasses import replace

import pytest

from dcp.errors import FencedError
from dcp.lake.change_log.control import (
    Control,
    ControlRequest,
    RequestAction,
    RequestState,
    pause_of,
)
from dcp.lake.config.table_names import CONTROL_TABLE
from dcp.lake.run.control_requests import Requests
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ensure_replicas
from tests.lake.figures import figures_of
from tests.lake.log_model import LogModel
from tests.lake.memory_store import MemoryStore, lake_in_memory
from tests.lake.memory_table import MemoryTable


def lake_with_request() -> tuple[MemoryStore, LakeTables, LogModel, Control]:
    """Return a lake with a round of the driver "writer", which is asked to resync it."""
    store = MemoryStore()
    lake = lake_in_memory(1, store)
    ensure_replicas(lake, [DOCS])
    model = LogModel(lake, 1)
    model.commit(model.next_round(), "writer")
    control = Control(lake)
    control.write(ControlRequest.new(RequestAction.RESYNC, None, {}), RequestState.REQUESTED)
    return store, lake, model, control


@pytest.fixture
def unreadable_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has a file that cannot be read."""
    monkeypatch.setattr(MemoryTable, "can_read_all", lambda _: False)


@pytest.mark.usefixtures("unreadable_file")
@pytest.mark.parametrize("writer", ["writer", "one without a round"])
def test_a_driver_that_is_overtaken_in_a_repair_stops_and_leaves_the_request_open(
    writer: str,
) -> None:
    store, lake, model, control = lake_with_request()

    def overtake(_: str) -> None:
        store.between = lambda _: None
        model.commit(model.next_round(), "another driver")

    store.between = overtake
    with pytest.raises(FencedError):
        Requests(lake, control, writer, ()).carry_out()
    [request] = control.requests()
    assert request.is_open


@pytest.mark.usefixtures("unreadable_file")
def test_a_driver_that_was_overtaken_repairs_nothing() -> None:
    _, lake, model, control = lake_with_request()
    model.commit(model.next_round(), "the next driver")
    with pytest.raises(FencedError, match="by writer the next driver"):
        Requests(lake, control, "writer", ()).carry_out()
    [request] = control.requests()
    assert request.is_open


@pytest.mark.usefixtures("unreadable_file")
def test_who_only_looks_repairs_nothing() -> None:
    _, lake, _, control = lake_with_request()
    before = lake.changes.commits(1)
    looking = Requests(lake, Control(lake, writes=False), "writer", ())
    looking.carry_out()
    assert looking.resyncs() == {0: 1}
    assert lake.changes.commits(1) == before
    [request] = control.requests()
    assert request.state is RequestState.REQUESTED


def test_a_request_that_will_be_cancelled_neither_pauses_nor_resumes() -> None:
    pause, resume = (
        ControlRequest(id=name, action=name) for name in (RequestAction.PAUSE, RequestAction.RESUME)
    )
    assert pause_of([replace(pause, is_to_be_cancelled=True)]) is None
    assert pause_of([pause, replace(resume, is_to_be_cancelled=True)]) is pause
    done = replace(pause, state=RequestState.DONE, is_to_be_cancelled=True)
    assert pause_of([done]) is done, "the cancel came too late"


def test_the_status_tells_a_pause_as_long_as_it_holds() -> None:
    _, lake, _, control = lake_with_request()
    pause = ControlRequest.new(RequestAction.PAUSE, None, {})
    control.write(pause, RequestState.REQUESTED)
    told = str(figures_of(lake)).splitlines()
    assert f"  pause {pause.id}, requested: asked for by {pause.who}" in told
    Requests(lake, control, "writer", ()).carry_out()
    told = str(figures_of(lake)).splitlines()
    assert f"  paused by {pause.who} (request {pause.id}); dcplake resume ends that" in told
    assert figures_of(lake).to_json()["paused"] == f"paused by {pause.who} (request {pause.id})"
    control.write(ControlRequest.new(RequestAction.RESUME, None, {}), RequestState.REQUESTED)
    assert figures_of(lake).paused == ""


def test_each_cancel_of_an_ended_request_is_refused_once() -> None:
    _, lake, _, control = lake_with_request()
    requests = Requests(lake, control, "writer", ())
    control.write(ControlRequest.new(RequestAction.PAUSE, None, {}), RequestState.REQUESTED)
    requests.carry_out()
    [_, request] = control.requests()
    for _ in range(2):
        control.write(replace(request, action=RequestAction.CANCEL), RequestState.REQUESTED)
    for _ in range(3):
        requests.carry_out()
    answers = lake.table(CONTROL_TABLE).rows("state, detail", f"action = '{RequestAction.CANCEL}'")
    late = {"state": "refused", "detail": "cancel: found the request done, expected an open one"}
    assert answers[2:] == [late, late]
    assert control.requests()[1].state is RequestState.DONE
