"""Runs files of ``jobs/`` one after the other, in the session of the first.

A program for ``spark-submit``: an application for each job would take half a minute of CPU more.
"""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

JOBS: Final = Path(__file__).parents[2] / "jobs"


def run_jobs(names: Sequence[str], words: Sequence[str]) -> None:
    """Run each as ``python jobs/NAME.py WORDS``, and tell of its end."""
    for name in names:
        script = str(JOBS / f"{name}.py")
        sys.argv = [script, *words]
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            print(f"{name} ended with {end.code}", flush=True)


if __name__ == "__main__":
    run_jobs(sys.argv[1].split(","), sys.argv[2:])
