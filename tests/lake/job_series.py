"""Runs files of ``jobs/`` one after the other, in the session that the first one makes.

A program for ``spark-submit``: an application for each job would take half a minute of CPU more.
"""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
JOBS: Final = {
    "replicate": "--once --set apply.when=never",
    "backfill": "--set apply.when=never",
    "apply": "",
    "quality": "--suite {suite}",
    "maintain": "--step optimize",
    "verify": "",
}
"""Each job, on a new lake: of maintenance the step that works in tasks, of the suite a part."""


def commands_for(config: Path) -> list[str]:
    """Return the commands of all `JOBS` with this configuration; a suite is written beside it."""
    suite = json.loads((ROOT / "schemas" / "replica_suite.json").read_text())
    few = {"name": "few", "meta": {}, "expectations": suite["expectations"][:2]}
    path = config.with_name("suite.json")
    path.write_text(json.dumps(few))
    return [f"{name} {words.format(suite=path)} --config {config}" for name, words in JOBS.items()]


def run_jobs(*commands: str) -> None:
    """Run commands such as ``replicate --config FILE``, and tell of the end of each."""
    for command in commands:
        name, *words = shlex.split(command)
        sys.argv = [str(ROOT / "jobs" / f"{name}.py"), *words]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            print(f"{name} ended with {end.code}", flush=True)


def ended_jobs(output: str) -> dict[str, int]:
    """Return the exit code of each job, from what `run_jobs` printed."""
    return {name: int(code) for name, code in re.findall(r"^(\w+) ended with (\d+)$", output, re.M)}


if __name__ == "__main__":
    run_jobs(*sys.argv[1:])
