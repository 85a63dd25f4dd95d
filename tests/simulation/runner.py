"""Runs some seeds one after the other, in a process of their own or in a test's."""

from collections.abc import Sequence

from tests.simulation.report import Tally
from tests.simulation.world import BrokenPromiseError, run_seed


def run_seeds(seeds: Sequence[int]) -> tuple[Tally, list[str]]:
    """Run some seeds; return their tally, and what those say that broke a promise."""
    tally, failures = Tally(), []
    for seed in seeds:
        try:
            tally.add(run_seed(seed))
        except BrokenPromiseError as failed:
            failures.append(f"seed {seed}: {failed}")
    return tally, failures
