"""Rollback: a dead branch is never published; undoing published rows is refused."""

from dataclasses import replace

import pytest

from dcp.errors import LakeError
from dcp.lake.applied import replica_status
from dcp.lake.apply import plan_apply
from dcp.lake.tables import DOCS
from dcp.lake.views import register_views
from dcp.protocol.position import Position
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, apply_pending, read_documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_rollback_of_published_rows_is_refused(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 71)
    [vb] = model.vbuckets
    model.write_snapshot(vb, 5)
    model.commit(model.next_round(model.read(vb, 5, 1)))
    apply_pending(lake, [DOCS], 1, "w")
    published = model.documents_at(model.complete[1])
    roll_back(model, vb.items[1].seqno, round_number=2)
    with pytest.raises(LakeError, match=r"below the published seqno .* not yet supported"):
        plan_apply(lake, DOCS, 2)
    assert replica_status(lake, DOCS).round == 1
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == published


def test_a_dead_branch_is_never_published(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 81)
    [vb] = model.vbuckets
    register_views(lake)
    model.write_snapshot(vb, 5)
    model.commit(model.next_round(model.read(vb, 5, 1)))
    apply_pending(lake, [DOCS], 1, "w")
    fork = vb.items[-1].seqno
    model.write_snapshot(vb, 7)
    model.commit(model.next_round(model.read(vb, 7, 2)))  # complete, not applied, then lost
    roll_back(model, fork, round_number=3)
    live = model.documents_at(model.complete[3])
    assert read_documents(lake, "SELECT * FROM docs_live") == live
    apply_pending(lake, [DOCS], 3, "w")
    assert replica_status(lake, DOCS).round == 3
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == live


def roll_back(model: LogModel, fork: int, round_number: int) -> None:
    """Commit a round in which the only vbucket starts a new epoch at ``fork`` and goes on."""
    [vb] = model.vbuckets
    vb.items = [item for item in vb.items if item.seqno <= fork]
    vb.state = replace(
        vb.state,
        epoch=vb.state.epoch + 1,
        position=Position.complete_at(vb.uuid, fork),
        first_pending_round=None,
    )
    model.write_snapshot(vb, 3)
    rows = model.read(vb, 3, round_number)
    order = {
        "round": round_number,
        "epoch": vb.state.epoch,
        "vbucket": vb.vbucket,
        "kind": "rollback",
        "seqno": fork,
    }
    model.commit(model.next_round([order, *rows]))
