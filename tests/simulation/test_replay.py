"""A seed is the same story each time, in any process; and a failure says how to see it again."""

import os
import subprocess
import sys
from functools import cache

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.simulation.faults import Options
from tests.simulation.mutations import seeds_until_found
from tests.simulation.world import run_seed

SEEDS = (3, 9, 18)
SEEDS_TO_TRY = 60
OTHER_HASHES = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"

first_run = cache(run_seed)


def _trace_of_another_process(seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": OTHER_HASHES},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.rsplit("trace ", 1)[1].strip()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_twice_is_the_same(seed: int) -> None:
    assert first_run(seed) == run_seed(seed)
    assert first_run(seed).rounds > 0


@pytest.mark.slow
def test_a_seed_is_the_same_in_a_process_that_hashes_otherwise_and_had_no_other_cluster() -> None:
    with ProducerCluster(ClusterSettings(vbuckets=1)):
        pass
    assert _trace_of_another_process(SEEDS[1]) == run_seed(SEEDS[1]).trace


def test_seeds_differ() -> None:
    assert len({first_run(seed).trace for seed in SEEDS}) == len(SEEDS)


def test_options_are_the_seeds_own() -> None:
    from random import Random

    assert Options.drawn(Random(5)) == Options.drawn(Random(5)) != Options.drawn(Random(6))


@pytest.mark.parametrize(
    ("mutation", "begin", "promises"),
    [
        ("publishes half snapshots", 13, ("P1/P2",)),
        ("takes back no dead rows", 10, ("P1/P2", "P6")),
        ("driver does not look for others", 87, ("P7",)),
        ("a flush takes nothing", 9, ("P1/P2",)),
        ("columns do not grow", 11, ("typed columns", "P6")),
        ("the gate lets all pass", 14, ("quality.gate",)),
        ("the log keeps what is erased", 203830, ("erase",)),
        ("old versions keep what is erased", 203830, ("erase",)),
        ("publishes what no disk has", 6, ("persist_to",)),
    ],
)
def test_a_fault_of_ours_is_found_and_says_how_to_repeat_it(
    mutation: str, begin: int, promises: tuple[str, ...]
) -> None:
    """By the promise that it breaks, or by the first of them that a seed comes to.

    ``begin`` is a seed that finds it within a second: to run those below it takes minutes.
    """
    found = seeds_until_found(mutation, range(begin, begin + SEEDS_TO_TRY))
    assert found is not None, f"found nothing in {SEEDS_TO_TRY} seeds"
    assert found[1].startswith(promises)
