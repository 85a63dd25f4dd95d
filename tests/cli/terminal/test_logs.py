"""Logs of commands: one line each, JSON where the command was given ``--json``."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from dcp.cli.main import run_to_exit_code
from dcp.errors import LakeError


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    kept = {name: logging.getLogger(name).handlers[:] for name in ("", "dcp")}
    logging.getLogger("dcp").handlers.clear()
    yield
    for name, handlers in kept.items():
        logging.getLogger(name).handlers[:] = handlers


def fail() -> int:
    log = logging.getLogger("dcp.lake.test")
    log.warning("found %s", "two\nlines \x1b[31m")
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("went on")
    raise LakeError("no lake\nhere")


def test_what_is_logged_and_why_a_command_fails_is_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_to_exit_code("run", fail, as_json=True) == LakeError.exit_code
    warned, went_on, ended = map(json.loads, capsys.readouterr().err.splitlines())
    for each in (warned, went_on, ended):
        at = datetime.fromisoformat(each.pop("time"))
        assert timedelta() <= datetime.now(UTC) - at < timedelta(minutes=1)
    logger = "dcp.lake.test"
    assert warned == {"level": "WARNING", "logger": logger, "message": "found two\nlines \x1b[31m"}
    assert went_on.pop("stack").endswith("ValueError: a bug")
    assert went_on == {"level": "ERROR", "logger": logger, "message": "went on"}
    assert ended == {
        "level": "ERROR",
        "logger": "dcplake run",
        "message": "no lake\nhere",
        "exit_code": LakeError.exit_code,
    }


def test_a_bug_is_json_with_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    def break_down() -> int:
        raise ZeroDivisionError("oh")

    assert run_to_exit_code("run", break_down, as_json=True) == 1
    bug, ended = map(json.loads, capsys.readouterr().err.splitlines())
    assert bug["stack"].endswith("ZeroDivisionError: oh")
    assert (ended["message"], ended["exit_code"]) == ("ZeroDivisionError('oh')", 1)
    with pytest.raises(ZeroDivisionError):
        run_to_exit_code("run", break_down)


def test_without_json_they_are_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code("run", fail) == LakeError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(r"WARNING found two\nlines \x1b[31m")
    assert lines[-2:] == ["dcplake run: no lake", "here"]
