"""The benchmark of flow control runs, in its short mode, and what it writes is well-formed."""

import csv
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dcp.protocol.window_policies import WindowPolicy

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"
STRATEGIES = ["max", "tagged, slow outside", "tagged, slow inside", "min"]


def _run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.flow_control", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _texts(path: Path) -> set[str]:
    return {text.text or "" for text in ElementTree.parse(path).iter(f"{SVG}text")}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_parts_are_measured(tmp_path: Path) -> None:
    printed = _run("--short", "--folder", str(tmp_path))
    with (tmp_path / "flow-control.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = {
        part: [row["line"] for row in rows if row["part"] == part]
        for part in dict.fromkeys(row["part"] for row in rows)
    }
    policies = [policy.value for policy in WindowPolicy]
    assert {part: found for part, found in lines.items() if part != "window"} == {
        "policy": policies,
        "policy by window": policies,
        "policy by speed": policies,
        "relay": STRATEGIES,
        "relay by window": STRATEGIES,
    }
    assert [float(row["x"]) for row in rows if row["part"] == "window"] == [64, 1024]
    assert all(float(row["speed"]) > 0 for row in rows)
    # A window is overshot by one message at most.
    outstanding = [float(row["outstanding"]) for row in rows if row["part"] == "window"]
    assert outstanding[0] < (64 + 2) / 1024
    assert outstanding[1] < (1024 + 2) / 1024
    assert all(name in printed for name in (*lines["policy"], *STRATEGIES))
    assert _texts(tmp_path / "flow-control.svg") >= {*lines["policy"], *STRATEGIES}


def test_a_table_is_drawn_anew(tmp_path: Path) -> None:
    """What was written is read; what there is not stays empty; one point makes a picture."""
    table = tmp_path / "table.csv"
    head = "part,line,x,sink_limit,speed,outstanding,memory,upstream,slow"
    table.write_text(
        f"{head}\nwindow,<fast>,64.0,unlimited,500.0,0.06,9.0,,\n"
        "policy,none,2.0,unlimited,700.0,,30.0,,\nrelay,min,5.0,5 MB/s,5.2,,20.0,5.1,5.0\n"
    )
    printed = _run("--from-csv", str(table), "--folder", str(tmp_path))
    assert "<fast>" in printed
    texts = _texts(tmp_path / "flow-control.svg")
    assert texts >= {"<fast>", "none", "min", "64K"}
    assert not any("nan" in text or "inf" in text for text in texts)
