"""``jobs/replicate.py`` is ``dcplake run``, and ``jobs/maintain.py`` is ``dcplake maintain``.

The same options, words and exit codes.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from dcp.errors import ConfigError

JOBS = Path(__file__).parents[2] / "jobs"
PAIRS = [("replicate.py", "run"), ("maintain.py", "maintain")]


def ended(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize(("job", "command"), PAIRS)
@pytest.mark.parametrize("words", [["--set", "nonsense"], ["--set", "round.tasks=x"]])
def test_both_entry_points_end_alike(job: str, command: str, words: list[str]) -> None:
    code, told = ended(str(JOBS / job), *words)
    assert (code, told) == ended("-m", "dcp.cli.main", command, *words)
    assert code == ConfigError.exit_code
    assert told.startswith(f"dcplake {command}: ")


@pytest.mark.parametrize(("job", "command"), PAIRS)
def test_both_know_the_same_options(job: str, command: str) -> None:
    assert ended(str(JOBS / job), "--help") == ended("-m", "dcp.cli.main", command, "--help")
