"""``jobs/replicate.py`` is ``dcplake run``: the same options, words and exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest

from dcp.errors import ConfigError

JOB = Path(__file__).parents[2] / "jobs" / "replicate.py"
RUN = ["-m", "dcp.cli.main", "run"]


def ended(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize("words", [["--set", "nonsense"], ["--once", "--set", "round.tasks=x"]])
def test_both_entry_points_end_alike(words: list[str]) -> None:
    code, told = ended(str(JOB), *words)
    assert (code, told) == ended(*RUN, *words)
    assert code == ConfigError.exit_code
    assert told.startswith("dcplake run: ")


def test_both_know_the_same_options() -> None:
    assert ended(str(JOB), "--help") == ended(*RUN, "--help")
