"""A store that fails at one call, whichever it is: a run outlasts it, and leaves nothing undone."""

import threading
from collections.abc import Iterator
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from dcp.errors import StoreUnavailableError
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.maintain.horizon_guard import HorizonGuard, wrong_properties
from dcp.lake.receive.source_access import query_cluster
from dcp.lake.run import driver as driver_module
from dcp.lake.run.repair import repair
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import DOCS, ensure_replicas, replicas_in
from dcp.lake.tables.round_record import states_to_batch
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_rounds import MemoryRounds
from tests.lake.memory_store import MemoryStore, lake_in_memory
from tests.lake.memory_table import MemoryTable
from tests.lake.receiving import settings_for

HORIZON_HOURS: Final = 48.0
CALLS: Final = (
    *("exists", "properties", "commits", "take_rows", "query", "columns"),
    *("size", "table_id", "transaction_version"),
    *("create", "set_properties", "append", "append_on", "append_found", "renew", "merge"),
)


class FailingCalls:
    """Lets the call of this number fail, after it was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number, self._made = -1, 0
        for name in CALLS:
            monkeypatch.setattr(MemoryTable, name, self._failing(getattr(MemoryTable, name)))

    def _failing(self, real: Any) -> Any:
        @wraps(real)
        def call(*asked: Any, **named: Any) -> Any:
            done = real(*asked, **named)
            self._made += 1
            if self._made == self.number:
                raise StoreUnavailableError("503 once")
            return done

        return call

    def fail_at(self, number: int) -> None:
        self.number, self._made = number, 0

    @property
    def has_failed(self) -> bool:
        return self._made >= self.number


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=1, seed=11)) as cluster:
        for key in (b"a", b"b", b"c"):
            cluster.set(key, b"1")
        yield cluster


@pytest.fixture
def rounds(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MemoryRounds]:
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    settings = settings_for(
        cluster,
        tmp_path,
        lake={"horizon_hours": HORIZON_HOURS},
        round={"quiet_seconds": 0.05},
        flow_control={"batch_seconds": 0.01},
    )
    yield MemoryRounds(settings)


def once(rounds: MemoryRounds) -> None:
    rounds.driver.once(query_cluster(rounds.access), threading.Event())


def test_a_first_run_outlasts_any_failing_call(
    rounds: MemoryRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, number = FailingCalls(monkeypatch), 0
    while True:
        number += 1
        first = MemoryRounds(rounds.settings)
        calls.fail_at(number)
        once(first)
        if not calls.has_failed:
            break
        calls.fail_at(-1)
        assert first.lake.docs.kept.newest.rows.num_rows == 3, f"call {number}"
        lake, horizon = first.driver.lake, Horizon.of_hours(HORIZON_HOURS)
        assert not wrong_properties(lake, replicas_in(lake), horizon), f"call {number}"
    assert number > 30


def test_a_resync_is_done_once_whatever_call_fails(
    rounds: MemoryRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = FailingCalls(monkeypatch)
    once(rounds)
    lake, control = rounds.driver.lake, Control(rounds.driver.lake)
    for epoch in count(1):
        request = ControlRequest.new(RequestAction.RESYNC, "0", {})
        control.write(request, RequestState.REQUESTED)
        calls.fail_at(epoch)
        once(rounds)
        if not calls.has_failed:
            break
        calls.fail_at(-1)
        once(rounds)
        assert control.request(request.id).state == RequestState.DONE, f"call {epoch}"
        assert states_at(lake, latest_round(lake))[0].epoch == epoch, f"call {epoch}"
    assert epoch > 20


def test_a_repair_is_done_whatever_call_fails(
    rounds: MemoryRounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = FailingCalls(monkeypatch)
    once(rounds)
    control = Control(rounds.driver.lake)
    for number in count(1):
        calls.fail_at(-1)
        held = rounds.lake.docs.kept.newest.rows
        rounds.driver.lake.changes.delete(None, {})
        request = ControlRequest.new(RequestAction.RESYNC, None, {})
        control.write(request, RequestState.REQUESTED)
        calls.fail_at(number)
        once(rounds)
        has_failed = calls.has_failed
        calls.fail_at(-1)
        assert control.request(request.id).state == RequestState.DONE, f"call {number}"
        assert rounds.lake.docs.kept.newest.rows.num_rows == held.num_rows, f"call {number}"
        if not has_failed:
            break
    assert number > 30


def test_a_repair_whose_round_is_taken_by_a_late_commit_of_its_driver_is_not_done() -> None:
    """A store may carry out a PUT after the driver that sent it took it for failed."""
    store = MemoryStore()
    lake = lake_in_memory(2, store)
    ensure_replicas(lake, [DOCS])
    repair(lake, "w")
    late = states_to_batch(states_at(lake, 1).values(), 2)
    table, run_task = store.table("changes"), store.run_task

    def meanwhile(*asked: Any) -> list[pa.RecordBatch]:
        store.run_task = run_task
        ours = {"lake": lake.identity.lake_id, "round": 2, "writer": "w", "append": "earlier"}
        newest = table.kept.newest
        rows = pa.Table.from_batches([late], newest.columns)
        table.append_on(newest.number, rows, (lake.identity.lake_id, 2), ours)
        return run_task(*asked)

    store.run_task = meanwhile
    with pytest.raises(StoreUnavailableError, match="an earlier append of this driver"):
        repair(lake, "w")
    assert states_at(lake, 2)[0].epoch == states_at(lake, 1)[0].epoch


def test_the_guard_keeps_the_horizon_though_a_replica_was_looked_at_first() -> None:
    lake = lake_in_memory(2)
    ensure_replicas(lake, [DOCS])
    horizon = Horizon.of_hours(HORIZON_HOURS)
    guard = HorizonGuard(lake, horizon)
    guard.look_at(DOCS, lake)  # as the thread does that applies what a paused lake has received
    guard.check()
    assert not wrong_properties(lake, [DOCS], horizon)
