"""``tools/setup.sh``, with a Python that installs nothing, and where uv gets its packages from."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.uv_pip import pip_settings, uv_environment

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    *" install "*) echo "Collecting pyspark"; /bin/sleep 0.4; exit ${PIP_CODE:-0} ;;
    *purelib*) dirname "$0" ;;
    *--version*) echo "Python 3.13.0" ;;
    *runtime*) echo "Java 21 in /java" ;;
    *class_archive*) /bin/sleep 0.4; echo "it is there" ;;
esac
"""


@pytest.mark.parametrize("pip_code", [0, 1])
def test_it_tells_what_takes_so_long(tmp_path: Path, pip_code: int) -> None:
    shutil.copytree(ROOT / "tools", tmp_path / "a checkout" / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "a checkout")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in (("python3.13", PYTHON), ("sleep", "#!/bin/sh\nexec /bin/sleep 0.1\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    done = subprocess.run(
        [tmp_path / "a checkout" / "tools" / "setup.sh", "job"],
        env={"PATH": f"{commands}:{os.environ['PATH']}", "PIP_CODE": str(pip_code)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == pip_code, done.stderr
    assert " s, Collecting pyspark\n" in done.stdout
    if pip_code == 0:
        *_, jars, java, archive, last = done.stdout.splitlines()
        assert "Java and the Delta jars, downloaded where they are missing" in jars
        assert "archived in the background" in archive
        assert java == "setup: Java 21 in /java" and last.startswith("setup: done in ")
        waits = ["flock", ".venv-classes.lock", "cat", ".venv/class-archive.log"]  # as `make test`
        waited = subprocess.check_output(waits, cwd=tmp_path / "a checkout", timeout=60)
        assert waited == b"it is there\n"
    else:
        assert "the whole output is in .venv/setup.log" in done.stderr


def test_uv_is_told_what_pip_is_configured_with() -> None:
    listed = """\
:env:.default-timeout='180'
:env:.find-links='/wheels https://a.example/wheels'
global.cert='/certificates.pem'
global.extra-index-url='\\nhttps://b.example\\nhttps://c.example'
global.index-url='https://global.example'
install.index-url='https://install.example'
download.index-url='https://download.example'
"""
    told = uv_environment(pip_settings(listed))
    assert (
        told.items()
        >= {
            "UV_HTTP_TIMEOUT": "180",
            "UV_FIND_LINKS": "/wheels,https://a.example/wheels",
            "SSL_CERT_FILE": "/certificates.pem",
            "UV_INDEX": "https://b.example https://c.example",
            "UV_DEFAULT_INDEX": "https://install.example",
        }.items()
    )
    assert "UV_NO_INDEX" not in told


@pytest.mark.parametrize("given", [{}, {"UV_FIND_LINKS": "/nowhere"}])
def test_uv_finds_packages_where_pip_does_unless_it_is_told_otherwise(
    tmp_path: Path, given: dict[str, str]
) -> None:
    with zipfile.ZipFile(tmp_path / "found_here-1.0-py3-none-any.whl", "w") as wheel:
        about = "Metadata-Version: 2.1\nName: found-here\nVersion: 1.0\n"
        wheel.writestr("found_here-1.0.dist-info/METADATA", about)
        wheel.writestr("found_here-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("found_here-1.0.dist-info/RECORD", "")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "uv_pip.py", "install", "--dry-run", "found-here"],
        env=os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)} | given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode == 0) == (not given), done.stderr
    assert (" + found-here==1.0" in done.stderr) == (not given)
