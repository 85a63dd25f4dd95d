"""The lake's code and all jobs run on Spark Connect as they do on a classic session."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake.job_series import JOBS, ended_jobs

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bucket_is_replicated_and_all_jobs_run_over_spark_connect(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.lake.connect_run", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "exact versions: 2" in ended.stdout
    told = ended.stdout + ended.stderr
    assert ended_jobs(ended.stdout) == dict.fromkeys(JOBS, 0), told
    assert "applied: docs version 2: round 1 -> 3, 30 inserted" in told
