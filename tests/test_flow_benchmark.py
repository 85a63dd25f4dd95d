"""The benchmark of flow control draws a well-formed picture of its table."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


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
