"""Runs seeds: ``python -m tests.simulation FIRST [COUNT] [--processes N]``.

Of one seed it says the hash of its trace, which is always the same; of many the table of what
happened. A seed that breaks a promise is told with the command that repeats it.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from tests.simulation.report import Tally
from tests.simulation.runner import run_seeds
from tests.simulation.world import BrokenPromiseError, run_seed

_AT_ONCE: Final = 50


def _run_one(seed: int) -> int:
    try:
        run = run_seed(seed)
    except BrokenPromiseError as failed:
        traceback.print_exception(failed.__cause__)
        print(f"seed {seed}: {failed}")
        return 1
    tally = Tally()
    tally.add(run)
    print("\n".join([*tally.lines(), f"trace {run.trace}"]))
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; 1 where a promise was broken, or a fault never happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.count == 1:
        return _run_one(given.first)
    end = given.first + given.count
    parts = [range(at, min(end, at + _AT_ONCE)) for at in range(given.first, end, _AT_ONCE)]
    total, failures, began = Tally(), list[str](), time.monotonic()
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        for tally, failed in pool.map(run_seeds, parts):
            total.join(tally)
            failures += failed
            for text in failed:
                print(text, flush=True)
    print("\n".join(total.lines()))
    spent = os.times()
    cpu_seconds = spent.children_user + spent.children_system
    print(
        f"{time.monotonic() - began:,.0f} s in {given.processes} processes, "
        f"{cpu_seconds:,.0f} s of CPU"
    )
    for text in total.lacking:
        print(f"too rare: {text}")
    print(f"{len(failures)} seeds broke a promise")
    return int(bool(failures or total.lacking))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
