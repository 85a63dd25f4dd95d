"""Faults of ours, put into the product on purpose: how soon does the simulation find each?

``python -m tests.simulation.mutations [NAME…]`` says in which seed, from 0 on; tests keep a few.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

import numpy as np

import dcp.lake.apply.stretch_rules
import dcp.lake.log.changes
import dcp.lake.log.plan
import dcp.lake.log.restart
import dcp.lake.receive.receive
import dcp.producer.model.resume_rules
from dcp.client.delivery import ConnectionEnded, Delivery
from dcp.client.stream_keeper import StreamKeeper
from dcp.client.vbucket_track import StreamStart
from dcp.lake.apply.clearing_rules import Cleared
from dcp.lake.apply.stretch_rules import _Standing
from dcp.lake.log.restart import Target
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.producer.model.send_window import UNLIMITED, SendWindow
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.events import Items
from dcp.protocol.position import Position
from dcp.protocol.snapshot import SnapshotAssembly
from dcp.relay.relay_bucket import FilledByCluster, RelayBucket
from dcp.types import FailoverLog, SnapshotRange
from dcp.wire.vocabulary import VbucketState as NodesState
from tests.simulation.world import BrokenPromiseError, run_seed

MOST_SEEDS: Final = 100


def _half_snapshot(_: Any, seqno: int, __: SnapshotRange, log: FailoverLog) -> Position:
    return Position.complete_at(log.uuid_at(seqno), seqno)


def _fresh_log(state: VbucketProgress, _: Any) -> Target:
    order = state.order
    assert order is not None
    return Target(order.to_seqno, order.failover_log or state.failover_log)


def _skips_one(open_stream: Callable[..., int]) -> Callable[..., int]:
    def mutated(self: Any, vbucket: int, at: Position, **more: Any) -> int:
        if at.seqno and at.snap_end > at.seqno + 1:
            at = replace(at, seqno=at.seqno + 1)
        return open_stream(self, vbucket, at, **more)

    return mutated


def _from_zero(*arguments: Any, **more: Any) -> StreamStart:
    vbucket, node, position, log = arguments
    if not position.is_complete:
        position = Position.beginning()
    return StreamStart(vbucket, node, position, log, **more)


def _loses_rows(take: Callable[..., Any]) -> Callable[..., Any]:
    def shortened(event: Any) -> Any:
        if not isinstance(event, Items) or len(event.columns) < 2:
            return event
        return replace(event, columns=event.columns.take(np.arange(len(event.columns) - 1)))

    def mutated(self: Any, entry: Delivery | ConnectionEnded, now: float) -> Any:
        found = take(self, entry, now)
        if isinstance(found, Delivery):
            found = replace(found, events=[shortened(event) for event in found.events])
        return found

    return mutated


Place = tuple[Any, str, Any]
MUTATIONS: Final[Mapping[str, Sequence[Place]]] = {
    "publishes half snapshots": [(SnapshotAssembly, "_position_at", _half_snapshot)],
    "names a branch from the newest failover log": [
        (dcp.lake.log.restart, "rollback_target", _fresh_log)
    ],
    "takes back no dead rows": [(_Standing, "is_live", lambda *_: True)],
    "does not notice a branch that reached our seqno": [
        (dcp.lake.log.plan, "is_elsewhere", lambda *_: False)
    ],
    "skips a seqno when it resumes": [
        (ConsumerConnection, "open_stream", _skips_one(ConsumerConnection.open_stream))
    ],
    "resumes a snapshot from 0": [(dcp.lake.receive.receive, "StreamStart", _from_zero)],
    "loses the last row of a delivery": [(StreamKeeper, "take", _loses_rows(StreamKeeper.take))],
    "node ignores the window": [(SendWindow, "room_bytes", property(lambda _: UNLIMITED))],
    "node forgets what it purged": [(dcp.producer.model.resume_rules, "_purged", lambda *_: False)],
    "relay begins a branch when it starts": [(FilledByCluster, "opened_state", NodesState.ACTIVE)],
    "relay goes on with streams over a rollback": [
        (RelayBucket, "end_streams", lambda *_, **__: None)
    ],
    "relay serves who is ahead of it as if it were whole": [
        (RelayBucket, "is_too_early", lambda *_: False)
    ],
    "a flush takes nothing": [
        (dcp.lake.apply.stretch_rules, "with_events", lambda ranges, _: Cleared(ranges))
    ],
    "driver does not look for others": [
        (dcp.lake.log.changes, "refuse_other_writer", lambda *_, **__: None)
    ],
}


def seeds_until_found(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Return the seed that finds a mutation, and what it says; None where none does."""
    with ExitStack() as stack:
        for owner, attribute, stand_in in MUTATIONS[name]:
            stack.enter_context(patch.object(owner, attribute, stand_in))
        for seed in seeds:
            try:
                run_seed(seed)
            except BrokenPromiseError as failed:
                return seed, str(failed).split("\n", 1)[0]
    return None


def main(names: Sequence[str]) -> int:
    """Try the mutations; return how many were not found."""
    missed = 0
    for name in names or MUTATIONS:
        found = seeds_until_found(name, range(MOST_SEEDS))
        missed += found is None
        said = f"not in {MOST_SEEDS} seeds" if found is None else f"seed {found[0]}: {found[1]}"
        print(f"{name}: {said[:170]}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
