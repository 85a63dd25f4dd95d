"""``conf/setup.sh``, with a Python that installs nothing: what it says meanwhile."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *" install "*) echo "Collecting pyspark"; /bin/sleep 0.4; exit ${PIP_CODE:-0} ;;
    *purelib*) dirname "$0" ;;
    *--version*) echo "Python 3.13.0" ;;
    *runtime*) echo "Java 21 in /java" ;;
esac
"""


@pytest.mark.parametrize("pip_code", [0, 1])
def test_it_tells_what_takes_so_long(tmp_path: Path, pip_code: int) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "a checkout" / "conf")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "a checkout")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in (("python3.13", PYTHON), ("sleep", "#!/bin/sh\nexec /bin/sleep 0.1\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    done = subprocess.run(
        [tmp_path / "a checkout" / "conf" / "setup.sh", "job"],
        env={"PATH": f"{commands}:{os.environ['PATH']}", "PIP_CODE": str(pip_code)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == pip_code, done.stderr
    assert " s, Collecting pyspark\n" in done.stdout
    if pip_code == 0:
        *_, jars, java, last = done.stdout.splitlines()
        assert "Java and the Delta jars, downloaded where they are missing" in jars
        assert java == "setup: Java 21 in /java" and last.startswith("setup: done in ")
    else:
        assert "the whole output is in .venv/setup.log" in done.stderr
