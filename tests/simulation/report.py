"""Summarises all seeds of a run as a table; and checks that certain faults happened."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.faults import Run

EXPECTED: Final = (
    "apply held back",
    "apply held by the gate",
    "attempt of a task died",
    "backfill done",
    "bounded run",
    "burst of writes",
    "collection created",
    "collection dropped",
    "collection flushed",
    "columns grew",
    "cut",
    "cut with bytes in flight",
    "driver died: apply.committed",
    "driver died: apply.planned",
    "driver died: apply.read_back",
    "driver died: changes.committing",
    "driver died: docs.committing",
    "driver died: round.committed",
    "driver died: round.planned",
    "driver died: round.read_back",
    "driver died: round.received",
    "driver stalled",
    "documents erased",
    "erase done",
    "failover",
    "failover that lost writes",
    "failovers in a row",
    "half-open connection",
    "heartbeat",
    "log cleaned",
    "long delay",
    "node crashed",
    "node crashed that lost writes",
    "node hung",
    "node lost its disk",
    "node lost its disk that lost writes",
    "node refused connections",
    "pass while paused",
    "pause done",
    "published rows taken back",
    "published writes were lost",
    "rebalance moved vbuckets",
    "relay crashed",
    "relay crashed and lost its disk",
    "relay's upstream cut",
    "reordering between connections",
    "replication paused",
    "resync done",
    "rollback followed",
    "rollback to 0 followed",
    "slow sink",
    "split segment",
    "stalled apply overtaken",
    "stalled driver fenced",
    "stalled driver overtaken",
    "store failed: apply.committed",
    "store failed: changes.committing",
    "store failed: docs.committing",
    "store failed: round.committed",
    "table restored",
    "table written anew",
    "tombstones purged",
    "vbucket moved",
    "vbucket started where it was",
    "window full",
)
"""What no run of many seeds may lack."""
SEEDS_FOR_ONE: Final = 60
"""Of so many seeds at least one has each of them."""


@dataclass
class Tally:
    """The sum of some seeds."""

    seeds: int = 0
    seconds: float = 0.0
    turns: int = 0
    rounds: int = 0
    applies: int = 0
    happened: Counter[str] = field(default_factory=Counter)

    def add(self, run: Run) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.seconds += run.seconds
        self.turns += run.turns
        self.rounds += run.rounds
        self.applies += run.applies
        self.happened += run.happened

    def join(self, other: "Tally") -> None:
        """Count the seeds of another tally."""
        self.seeds += other.seeds
        self.seconds += other.seconds
        self.turns += other.turns
        self.rounds += other.rounds
        self.applies += other.applies
        self.happened += other.happened

    @property
    def lacking(self) -> list[str]:
        """What happened less often than so many seeds should make it."""
        least = self.seeds // SEEDS_FOR_ONE
        return [
            f"{name}: {self.happened[name]}, expected {least} or more in {self.seeds} seeds"
            for name in EXPECTED
            if self.happened[name] < least
        ]

    def to_json(self) -> str:
        """Return it for another process."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> "Tally":
        """Return what ``to_json`` wrote."""
        found: Mapping[str, Any] = json.loads(text)
        return cls(**{**found, "happened": Counter(found["happened"])})

    def lines(self) -> list[str]:
        """Return the table."""
        width = max(map(len, self.happened), default=0)
        return [
            *(f"  {name:<{width}} {times:>11,}" for name, times in sorted(self.happened.items())),
            f"{self.seeds:,} seeds, {self.seconds:,.0f} virtual seconds, {self.turns:,} turns of "
            f"the loop, {self.rounds:,} rounds, {self.applies:,} applies",
        ]


PROPERTY: Final = "simulation"
"""Under this name a test reports its tally."""


def told_by(properties: Iterable[Sequence[tuple[str, object]]]) -> Tally:
    """Return the sum of what tests reported."""
    total = Tally()
    for each in properties:
        for name, value in each:
            if name == PROPERTY:
                total.join(Tally.from_json(str(value)))
    return total
