"""Holds deploy/dcplake.service against the code: exit codes, time to stop, command."""

import shlex
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Final

import pytest

from dcp.lake.config.settings import Settings
from dcp.lake.run.replicate import _AFTER_ROUND_SECONDS
from tests.test_reference import exit_codes, refused

ROOT: Final = Path(__file__).resolve().parents[1]
UNIT: Final = ROOT / "deploy" / "dcplake.service"
INSTALLED: Final = "/opt/dcplake/"
MAY_PASS: Final = {1, 3, 4, 5}
"""A later start may succeed after these codes. Airflow gives up after 3; a service has time."""


def service() -> dict[str, str]:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT, encoding="utf-8")
    return dict(unit["Service"])


def codes(key: str) -> set[int]:
    return {int(code) for code in service()[key].split()}


def test_every_exit_code_starts_the_run_again_or_does_not() -> None:
    final, clean = codes("RestartPreventExitStatus"), codes("SuccessExitStatus")
    assert clean == {130, 143}
    assert final | MAY_PASS | clean - {143} == exit_codes()
    assert not final & (MAY_PASS | clean)
    assert service()["Restart"] == "on-failure"


def test_systemd_waits_longer_than_a_stop_takes() -> None:
    longest = Settings().round.target_seconds + _AFTER_ROUND_SECONDS
    assert float(service()["TimeoutStopSec"]) > longest
    assert service()["KillMode"] == "mixed"


def test_the_command_is_one_of_a_continuous_run() -> None:
    program, *words = shlex.split(service()["ExecStart"])
    assert program == f"{INSTALLED}.venv/bin/dcplake"
    assert words[0] == "run" and "--once" not in words
    assert refused(words) == ""


@pytest.mark.interop
def test_systemd_knows_every_line_also_those_in_comments(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8").replace(INSTALLED, f"{ROOT}/")
    lines = [line.removeprefix("#") if line[:2] != "# " else line for line in text.splitlines()]
    unit = tmp_path / UNIT.name
    unit.write_text("\n".join(lines) + "\n", encoding="utf-8")
    verify = ["systemd-analyze", "verify", str(unit)]
    told = subprocess.run(verify, capture_output=True, text=True, check=True, timeout=60).stderr
    assert [line for line in told.splitlines() if UNIT.name in line] == []
