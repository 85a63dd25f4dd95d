"""Counts and ages of pending changes."""

from datetime import timedelta

import pytest

from dcp.lake.apply import applier
from dcp.lake.apply.applier import pending_of
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log import changes
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import DOCS, ensure_replicas
from tests.lake.log_model import LogModel
from tests.lake.memory_store import lake_in_memory


def test_what_is_pending_follows_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_in_memory(2)
    ensure_replicas(lake, [DOCS])
    model = LogModel(lake, 1)
    first, second = model.vbuckets
    assert pending_of(lake, DOCS, 0) is None
    model.write_snapshot(first, 5)
    model.write_snapshot(second, 4)
    opened = model.commit(model.next_round(model.read(first, 3, 1)))
    assert pending_of(lake, DOCS, 1) is None  # an apply could take nothing of it
    model.commit(model.next_round(model.read(second, 4, 2)))
    pending = pending_of(lake, DOCS, 2)
    assert pending is not None and pending.rows == 4
    plan = plan_merge(lake, DOCS, 2)
    assert plan is not None
    run_apply(lake, plan, "w")
    assert pending_of(lake, DOCS, 2) is None
    model.commit(model.next_round(model.read(first, 2, 3)))
    # The rows of round 1 waited through the apply, and are the oldest. A short look at the
    # history does not reach them.
    monkeypatch.setattr(changes, "WINDOW", 0)
    monkeypatch.setattr(applier, "history", lambda *a: history(*a)[:1])
    monkeypatch.setattr(changes, "history", lambda *a: history(*a)[: a[1] if len(a) > 1 else 1])
    pending = pending_of(lake, DOCS, 3, opened.time + timedelta(seconds=90))
    assert pending is not None and (pending.rows, pending.age_seconds) == (5, 90.0)
    monkeypatch.setattr(changes, "history", lambda *a: history(*a)[:1])
    pending = pending_of(lake, DOCS, 3)
    assert pending is not None and pending.age_seconds == float("inf")
