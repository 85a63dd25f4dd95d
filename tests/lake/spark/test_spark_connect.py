"""The lake's code runs on Spark Connect as it does on a classic session."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_bucket_is_replicated_over_spark_connect(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.lake.connect_run", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "exact versions: 3" in ended.stdout
