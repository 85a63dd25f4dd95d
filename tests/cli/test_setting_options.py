"""A command's options come from the declaration of its settings, and from its groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from typer import BadParameter, Option
from typer.testing import CliRunner

from dcp.cli.main import new_application
from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.values import seconds_option
from dcp.setting_keys import Section, key, key_of


@dataclass(frozen=True, kw_only=True)
class Owner(Section):
    quota_bytes: int = key(8, "How many.", unit="bytes", least=2)
    age_seconds: float = key(1.0, "How old.", unit="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(Owner):
    note: str = ""
    nodes: int = key(1, "Data nodes.", least=1, most=3, option="--nodes")
    quota_bytes: int = key_of(Owner, "quota_bytes", option="--memory-quota")
    seed: int = key(0, "Fixes what is random.")


@dataclass(frozen=True, slots=True)
class Ports:
    port: Annotated[int, Option(min=0, help="where")]
    twin: Annotated[int | None, Option("--twin-port")] = None


calls: list[tuple[Mapping[str, Any], Ports, str]] = []


@takes_settings(Served)
def run(*, settings: Mapping[str, Any], ports: Ports, name: str = "a") -> int:
    calls.append((settings, ports, name))
    return 0


def outcome(*words: str) -> str:
    application = new_application("")
    application.command()(run)
    return CliRunner().invoke(application, words, env={"COLUMNS": "100"}).output


def test_a_setting_that_names_an_option_has_it() -> None:
    shown = outcome("--help")
    assert "--nodes N  " in shown and "data nodes (1 to 3)  [default: 1]" in shown
    assert "--memory-quota BYTES" in shown and "how many  [default: 8]" in shown


def test_a_setting_that_names_none_has_none() -> None:
    shown = outcome("--help")
    assert not any(word in shown for word in ("--seed", "--age", "--note", "--quota"))


def test_a_command_gets_its_settings_and_groups_by_name() -> None:
    calls.clear()
    outcome("--memory-quota", "4", "--port", "7", "--twin-port", "9", "--name", "b")
    outcome("--port", "7")
    assert calls == [
        ({"nodes": 1, "quota_bytes": 4}, Ports(7, 9), "b"),
        ({"nodes": 1, "quota_bytes": 8}, Ports(7), "a"),
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--port", "7", "--memory-quota", "1"), "found 1, expected 2 or more"),
        (("--port", "7", "--nodes", "4"), "found 4, expected 1 to 3"),
        (("--port", "-1"), "greater than or equal to 0"),
        ((), "Missing option '--port'"),
    ],
)
def test_an_option_has_the_bounds_of_its_setting(words: tuple[str, ...], told: str) -> None:
    assert told in outcome(*words)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("0.9", "found 0.9, expected 1 to 9.5"),
        ("9.6", "found 9.6, expected 1 to 9.5"),
        ("-1", "found '-1', expected seconds, 0 or more"),
    ],
)
def test_an_option_in_seconds_has_the_bounds_of_its_setting(value: str, told: str) -> None:
    parse = seconds_option("how long", 1, 9.5).parser
    assert parse("9.5") == 9.5
    with pytest.raises(BadParameter, match=told):
        parse(value)
