"""The plan of an erasure, while another driver goes on."""

import pytest

from dcp.errors import FencedError
from dcp.lake.apply.merge_planner import plan_erasure
from dcp.lake.change_log.erase_request import Erasure, key_hash
from dcp.lake.tables.lake_tables import DOCS
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, apply_pending


def test_a_driver_that_stood_still_takes_no_table_back_to_its_round(
    new_lake_in_memory: NewLake,
) -> None:
    lake = new_lake_in_memory(1)
    model = LogModel(lake, 1)
    [vb] = model.vbuckets
    model.write_snapshot(vb, 6)
    erasure = Erasure(DOCS.collection, frozenset({key_hash("k")}))
    for number, most in ((1, 3), (2, 3)):
        model.commit(model.next_round(model.read(vb, most, number)))
        apply_pending(lake, [DOCS], number, "another")
        assert plan_erasure(lake, DOCS, number, erasure).log_slice.to_round == number
    with pytest.raises(FencedError, match=r"found round 2, expected at most 1; this driver stops"):
        plan_erasure(lake, DOCS, 1, erasure)
