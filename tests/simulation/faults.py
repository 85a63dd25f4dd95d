"""The faults of a simulation and their probabilities, drawn from the seed; and those that happened.

As in swarm testing each seed has only some kinds of faults: all of them at once would hide those
that need quiet around them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from dcp.lake.config.settings import ApplyWhen


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """How connections behave. Seconds, and probabilities for each thing that is sent."""

    least_seconds: float = 0.0002
    usual_seconds: float = 0.003
    slow: float = 0.02
    slow_seconds: float = 0.3
    split: float = 0.05


RATES: Final[Mapping[str, float]] = {
    "burst": 0.8,
    "cut": 1.0,
    "half_open": 0.3,
    "hang": 0.2,
    "refuse": 0.2,
    "crash": 0.6,
    "disk_loss": 0.07,
    "failover": 0.35,
    "double_failover": 0.12,
    "move": 0.3,
    "rebalance": 0.3,
    "purge": 0.35,
    "pause_replication": 0.3,
    "snapshot_cut": 0.3,
    "flush": 0.3,
    "collections": 0.4,
    "relay_crash": 0.4,
    "relay_disk_loss": 0.25,
    "relay_cut": 0.4,
}
"""How often each thing is tried in a second, where a seed has it."""
DRIVER: Final[Mapping[str, float]] = {
    "driver_crash": 0.1,
    "driver_stall": 0.1,
    "store_fails": 0.1,
    "attempt_dies": 0.12,
    "slow_sink": 0.3,
    "restore": 0.12,
    "clean": 0.12,
    "request": 0.5,
    "once": 0.2,
}
"""How likely each is at each occasion: a step of a driver, a batch of a task, a finished pass."""


@dataclass(frozen=True, slots=True)
class Options:
    """One seed's system and its faults."""

    nodes: int
    vbuckets: int
    keys: int
    replicas: int
    unpersisted_seqnos: int
    checkpoint_items: int
    rules: Literal["document", "server"]
    window_bytes: int
    target_bytes: int
    value_bytes: int
    tasks: int
    relay: bool
    network: NetworkFaults
    storm_seconds: float
    writes_per_second: float
    rates: Mapping[str, float]
    driver: Mapping[str, float]
    scram: bool
    starts_now: bool
    """Whether the lake is to have nothing of before (`filter.since`)."""
    apply_when: ApplyWhen
    horizon_seconds: float
    """A short one makes heartbeats."""
    persist_to: int
    """On how many disks rows must be before they are published (`policy.persist_to`)."""
    contracts: int
    """How many contracts take turns (`apply.contracts_folder`); 0: no typed columns."""
    gate: bool
    """Whether the quality gate holds applies back (`quality.gate`)."""
    apply_rows: int
    """An apply of more rows is left to the table's store."""

    @classmethod
    def drawn(cls, random: Random) -> "Options":
        """Return what a seed has."""
        replicas = random.choice((0, 1, 1))
        relay = random.random() < 0.35
        rates = {name: rate for name, rate in RATES.items() if random.random() < 0.45}
        if not relay:
            rates = {name: rate for name, rate in rates.items() if not name.startswith("relay")}
        return cls(
            nodes=random.choice((2, 2, 3)),
            vbuckets=random.choice((1, 2, 4)),
            keys=random.choice((4, 12, 30, 30)),
            replicas=replicas,
            unpersisted_seqnos=random.choice((0, 1, 4)),
            checkpoint_items=random.choice((2, 3, 20, 10_000)),
            rules=random.choice(("document", "server")),
            window_bytes=random.choice((4096, 4096, 4096, 65_536)),
            target_bytes=random.choice((400, 2000, 10**6, 10**6)),
            value_bytes=random.choice((10, 400, 2000, 2000)),
            tasks=random.choice((1, 1, 2)),
            relay=relay,
            network=NetworkFaults(
                usual_seconds=random.choice((0.001, 0.01)),
                slow=random.choice((0.0, 0.01, 0.05)),
                slow_seconds=random.choice((0.05, 0.4, 1.5)),
                split=random.choice((0.0, 0.1)),
            ),
            storm_seconds=random.choice((2.5, 4.0)),
            writes_per_second=random.choice((2.0, 5.0)),
            rates=rates,
            driver={name: p for name, p in DRIVER.items() if random.random() < 0.5},
            scram=random.random() < 0.15,
            starts_now=random.random() < 0.12,
            apply_when=random.choice(
                (
                    ApplyWhen.EVERY_ROUND,
                    ApplyWhen.EVERY_ROUND,
                    ApplyWhen.PENDING_FRACTION,
                    ApplyWhen.AGE,
                )
            ),
            horizon_seconds=random.choice((604_800.0, 604_800.0, 8.0)),
            persist_to=0 if relay else random.choice((0, 0, 1, 1 + replicas)),
            contracts=random.choice((0, 0, 1, 2)),
            gate=random.random() < 0.15,
            apply_rows=random.choice((3, 20_000, 20_000)),
        )


class Counts:
    """How often each thing happened."""

    def __init__(self) -> None:
        self.happened: Counter[str] = Counter()

    def add(self, name: str, count: int = 1, **amounts: int) -> None:
        """Note that something happened; ``amounts`` are summed under names of their own."""
        self.happened[name] += count
        for what, amount in amounts.items():
            self.happened[f"{name}: {what.replace('_', ' ')}"] += amount


@dataclass
class Run:
    """What one seed came to."""

    seed: int
    seconds: float = 0.0
    turns: int = 0
    rounds: int = 0
    applies: int = 0
    trace: str = ""
    happened: Counter[str] = field(default_factory=Counter)
