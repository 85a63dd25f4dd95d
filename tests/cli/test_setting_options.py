"""A command's options come from the declarations of its settings."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any

import pytest
from typer import BadParameter
from typer.testing import CliRunner

from dcp.cli.main import new_application
from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.values import seconds_option
from dcp.errors import ConfigError
from dcp.setting_keys import Section, key, key_of, texts_of


@dataclass(frozen=True, kw_only=True)
class Owner(Section):
    quota_bytes: int = key(8, "How many.", unit="bytes", least=2)
    age_seconds: float = key(1.0, "How old.", unit="seconds")


@dataclass(frozen=True, slots=True)
class Keys(Section):
    own: str = key("", "What we show.")
    lock: str = key("", "What opens it.")
    turns: bool = key(False, "Whether it turns.")

    def __post_init__(self) -> None:
        if self.lock and not self.own:
            raise ConfigError("lock: found no own, expected it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served(Owner):
    note: str = key("", "What it is for.")
    inner: Keys | None = key(
        None,
        "Listens.",
        parts={"own": "--own FILE", "lock": "--lock FILE", "turns": "--turns: turn it"},
    )
    outer: Keys | None = key(None, "Asks.", option="--ask", parts={"own": "--trust FILE"})
    names: tuple[str, ...] = key("a,b", "Who.", option="--names NAME,…", parse=texts_of)
    nodes: int = key(1, "Data nodes.", least=1, most=3, option="--nodes")
    quota_bytes: int = key_of(Owner, "quota_bytes", option="--memory-quota")
    seed: int = key(0, "Fixes what is random.")


def digits(text: str) -> tuple[int, ...]:
    if not text.isdecimal():
        raise ConfigError(f"found {text!r}, expected digits")
    return tuple(map(int, text))


@dataclass(frozen=True, slots=True)
class Ports(Section):
    port: tuple[int, ...] = key(MISSING, "Where.", option="--port N", parse=digits)
    twin: int | None = key(None, "Where else.", least=0, most=9, option="--twin-port")


calls: list[tuple[Mapping[str, Any], Ports, str]] = []
PLAIN = {"nodes": 1, "quota_bytes": 8, "inner": None, "outer": None, "names": ("a", "b")}


@takes_settings
def run(*, settings: Annotated[Mapping[str, Any], Served], ports: Ports, name: str = "a") -> int:
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
    assert not any(word in shown for word in ("--seed", "--age", "--note", "--quota", "--inner"))


def test_an_option_shows_the_word_for_its_value_and_the_text_of_its_default() -> None:
    shown = outcome("--help")
    assert "--names NAME,…" in shown and "who  [default: a,b]" in shown


def test_a_command_gets_its_settings_and_sections_by_name() -> None:
    calls.clear()
    outcome("--memory-quota", "4", "--port", "78", "--twin-port", "9", "--name", "b")
    outcome("--port", "7", "--names", "c, d")
    assert calls == [
        (PLAIN | {"quota_bytes": 4}, Ports((7, 8), 9), "b"),
        (PLAIN | {"names": ("c", "d")}, Ports((7,)), "a"),
    ]


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("--own", "o"), {"inner": Keys("o")}),
        (("--own", "o", "--lock", "k"), {"inner": Keys("o", "k")}),
        (("--own", "o", "--turns"), {"inner": Keys("o", "", True)}),
        (("--ask",), {"outer": Keys()}),
        (("--trust", "t"), {"outer": Keys("t")}),
    ],
)
def test_a_section_is_made_of_the_options_of_its_parts(
    words: tuple[str, ...], made: dict[str, Keys]
) -> None:
    calls.clear()
    outcome("--port", "7", *words)
    assert calls == [(PLAIN | made, Ports((7,)), "a")]


def test_the_first_part_says_what_parts_mean() -> None:
    shown = " ".join(outcome("--help").split())
    assert "--own FILE what we show; listens --lock FILE what opens it --turns turn it" in shown
    assert "--ask asks --trust FILE what we show; implies --ask" in shown


def test_a_section_that_is_refused_names_its_options() -> None:
    application = new_application("")
    application.command()(run)
    found = CliRunner().invoke(application, ["--port", "7", "--lock", "k"]).exception
    assert str(found) == "--own, --lock, --turns: lock: found no own, expected it"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--port", "7", "--memory-quota", "1"), "found 1, expected 2 or more"),
        (("--port", "7", "--nodes", "4"), "found 4, expected 1 to 3"),
        (("--port", "x"), "found 'x', expected digits"),
        (("--port", "7", "--twin-port", "10"), "found 10, expected 0 to 9"),
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
