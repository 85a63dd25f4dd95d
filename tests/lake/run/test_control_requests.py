"""Requests of the table ``control`` and a driver that is overtaken as it carries one out."""

import pytest

from dcp.errors import FencedError
from dcp.lake.log.control import Action, ActionState, Control
from dcp.lake.run.control_requests import RESYNC, Requests
from dcp.lake.tables.tables import DOCS, ensure_replica
from tests.lake.log_model import LogModel
from tests.lake.memory_store import MemoryStore, lake_in_memory


def test_a_driver_that_is_overtaken_in_a_resync_stops_and_leaves_the_request_open() -> None:
    store = MemoryStore()
    lake = lake_in_memory(1, store)
    ensure_replica(lake, DOCS)
    model = LogModel(lake, 1)
    model.commit(model.next_round())
    control = Control(lake)
    control.write(Action.requested(RESYNC, None, {}), ActionState.REQUESTED)

    def overtake(_: str) -> None:
        store.between = lambda _: None
        model.commit(model.next_round(), "another driver")

    store.between = overtake
    with pytest.raises(FencedError):
        Requests(lake, control, "overtaken driver", ()).carry_out()
    [action] = control.actions()
    assert action.is_open
