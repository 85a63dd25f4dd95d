"""Faults put into the product on purpose, and the first seed of the simulation that finds each."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from unittest.mock import patch

import dcp.lake.apply.slice_rules
import dcp.lake.apply.typed_plan
import dcp.lake.change_log.changes
import dcp.lake.run.driver_erasures
from dcp.lake.apply.clearing_rules import ClearedRanges
from dcp.lake.quality.gate import QualityGate
from dcp.lake.run.persistence_gate import PersistenceGate
from dcp.protocol.position import Position
from dcp.protocol.snapshot import SnapshotAssembly
from dcp.types import FailoverLog, SnapshotRange
from tests.simulation.world import BrokenPromiseError, run_seed


def _half_snapshot(_: Any, seqno: int, __: SnapshotRange, log: FailoverLog) -> Position:
    return Position.complete_at(log.uuid_at(seqno), seqno)


Place = tuple[Any, str, Any]
MUTATIONS: Final[Mapping[str, Place]] = {
    "publishes half snapshots": (SnapshotAssembly, "_position_at", _half_snapshot),
    "takes back no dead rows": (
        dcp.lake.apply.slice_rules,
        "is_on_live_branch",
        lambda *_: True,
    ),
    "a flush takes nothing": (
        dcp.lake.apply.slice_rules,
        "with_events",
        lambda ranges, *_: ClearedRanges(ranges),
    ),
    "driver does not look for others": (
        dcp.lake.change_log.changes,
        "refuse_other_writer",
        lambda *_, **__: None,
    ),
    "the log keeps what is erased": (dcp.lake.run.driver_erasures, "erase_rows", lambda *_: {}),
    "old versions keep what is erased": (
        dcp.lake.run.driver_erasures,
        "purge_tables",
        lambda *_: 0,
    ),
    "columns do not grow": (dcp.lake.apply.typed_plan, "grown", lambda document, _: document),
    "the gate lets all pass": (QualityGate, "may_publish", lambda *_: True),
    "publishes what no disk has": (PersistenceGate, "lets_pass", lambda *_, **__: True),
}


def seeds_until_found(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Return the seed that finds a mutation, and what it says; None where none does."""
    with patch.object(*MUTATIONS[name]):
        for seed in seeds:
            try:
                run_seed(seed)
            except BrokenPromiseError as failed:
                return seed, str(failed).split("\n", 1)[0]
    return None
