"""Each setting is declared once, whichever sections show it."""

import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest

from dcp.client.settings import ConnectionSettings, ReachSettings
from dcp.errors import ConfigError
from dcp.lake.config.settings import SECTIONS
from dcp.protocol.window_policies import FlowSettings
from dcp.setting_keys import Section, key, key_of, section_of, shown_settings, texts_of
from dcp.tls_settings import TlsSettings

ROOT = Path(__file__).parents[1]

OTHER_THINGS = {"bucket", "bucket_uuid", "rules", "tls"}
"""Names that stand for several settings.

A cluster has one bucket, a client reads one. A producer follows the rules of a server or of DCP's
document; a lake's rules are those of privacy. A lake says whether it encrypts, a client with which
certificates, a cluster with which it listens.
"""


def sections() -> list[type[Section]]:
    """All that `dcp` has, by the files that say so."""
    found = []
    for path in sorted((ROOT / "dcp").rglob("*.py")):
        names = re.findall(
            r"(?m)^class (\w+)\([\w, ]*(?:Section|Settings)\)", path.read_text(encoding="utf-8")
        )
        if names:
            module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            classes = [getattr(module, name) for name in names]
            found += [each for each in classes if issubclass(each, Section)]
    return found


def declared_twice(found: Iterable[type[Section]]) -> dict[str, list[str]]:
    """Names of settings that several sections declare, each by itself, with these sections."""
    homes: dict[str, dict[object, str]] = {}
    for section in found:
        for each in fields(section):
            if each.metadata or each.default not in (MISSING, None):
                declaration = each.metadata.get("declaration", section)
                homes.setdefault(each.name, {}).setdefault(declaration, section.__name__)
    return {name: list(at.values()) for name, at in homes.items() if len(at) > 1}


@dataclass(frozen=True, slots=True)
class Owner(Section):
    patience_seconds: float = key(2.0, "How long.", unit="seconds", least=1, most=9)
    tasks: int = key(1, "How many.")
    password: str = key("", "Never shown.", may_be_secret=True)


@dataclass(frozen=True, slots=True)
class Shows(Section):
    patience_seconds: float = key_of(Owner, "patience_seconds", default=3.0, least=2)
    password: str = key_of(Owner, "password")


@dataclass(frozen=True, slots=True)
class Declares(Section):
    patience_seconds: float = key(2.0, "How long.", unit="seconds", least=1, most=9)
    tasks: int = 1


def test_no_setting_is_declared_in_two_sections() -> None:
    found = sections()
    assert len(found) >= 15
    assert declared_twice(found).keys() == OTHER_THINGS


def test_a_second_declaration_is_found() -> None:
    assert declared_twice([Owner, Shows]) == {}
    assert declared_twice([Owner, Shows, Declares]) == {
        "patience_seconds": ["Owner", "Declares"],
        "tasks": ["Owner", "Declares"],
    }


def test_a_shared_setting_is_the_owners_but_for_what_is_changed() -> None:
    assert Shows() == Shows(3.0, "")
    assert "password" not in repr(Shows(password="x"))
    with pytest.raises(ConfigError, match=r"found 1\.5 .* from 2 to 9 \(seconds\)"):
        Shows(1.5)
    with pytest.raises(TypeError, match="leest"):
        key_of(Owner, "tasks", leest=2)


@dataclass(frozen=True, kw_only=True)
class Shared(Section):
    patience_seconds: float = key(2.0, "How long.", unit="seconds", least=1, most=9)
    grace_seconds: float = key(1.0, "How much longer.", is_internal=True)


@dataclass(frozen=True, kw_only=True)
class SharedToo(Section):
    tasks: int = key(1, "How many.")


@dataclass(frozen=True, slots=True)
class Inherits(Shared, SharedToo):
    name: str = key("", "Who.")
    tasks: int = key_of(SharedToo, "tasks", least=1)


def test_a_section_has_all_settings_of_those_it_inherits_from() -> None:
    section = Inherits(name="a", patience_seconds=3.0, grace_seconds=0.5)
    assert section_of(Shared, section) == Shared(patience_seconds=3.0, grace_seconds=0.5)
    assert [each.name for each in shown_settings(Inherits)] == ["name", "tasks", "patience_seconds"]
    assert declared_twice([Shared, SharedToo, Inherits]) == {}
    with pytest.raises(ConfigError, match=r"patience_seconds: found 10 \(int\)"):
        Inherits(patience_seconds=10)
    with pytest.raises(ConfigError, match="tasks: found 0"):
        Inherits(tasks=0)


@pytest.mark.parametrize(
    ("owner", "shown"),
    [(ReachSettings, SECTIONS["source"]), (FlowSettings, SECTIONS["flow_control"])],
)
def test_a_lake_shows_what_its_client_has(owner: type[Section], shown: type[Section]) -> None:
    names = {each.name for each in shown_settings(owner)}
    assert names and names <= {each.name for each in shown_settings(shown)}
    assert issubclass(ConnectionSettings, owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads(Section):
    names: tuple[str, ...] = key("a", "Who.", parse=texts_of)
    age_seconds: float | None = key(None, "How old.", least=0, most=float("inf"), unit="seconds")


def test_a_section_parses_a_text_wherever_it_is_given() -> None:
    assert Reads().names == ("a",)
    assert Reads(names="a, b") == Reads(names=("a", "b"))  # type: ignore[arg-type]  # as in TOML


@pytest.mark.parametrize("age", [-1.0, float("nan"), "1"])
def test_a_number_that_may_be_none_is_checked(age: object) -> None:
    assert [Reads(age_seconds=each).age_seconds for each in (None, 1, float("inf"))]
    with pytest.raises(ConfigError, match=r"age_seconds: found .* expected a number from 0 to inf"):
        Reads(age_seconds=age)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Texts(Section):
    host: str = key(MISSING, "Where.")
    name: str = key("a", "Who.")
    note: str = key("", "What for.")
    without: str = key("b", "Whom not.", may_be_empty=True)


@pytest.mark.parametrize("name", ["host", "name"])
def test_a_text_is_not_blank_unless_it_may_be_empty(name: str) -> None:
    assert Texts("h", without="", note="").without == ""
    for value in ("", " ", None):
        with pytest.raises(ConfigError, match=rf"{name}: found .*, expected a non-empty text"):
            Texts(**{"host": "h", name: value})  # type: ignore[arg-type]  # as of a file


@pytest.mark.parametrize("name", ["note", "without"])
def test_a_text_that_may_be_empty_is_not_blank(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{name}: found ' ' .*, expected a text, not only spaces"
    ):
        Texts("h", **{name: " "})


@dataclass(frozen=True, slots=True)
class Listens(Section):
    subject: ClassVar[str] = "node "
    port: int = key(0, "Where.", least=0, option="--listen HOST:PORT")
    name: str = key("a", "Who.")
    tls: TlsSettings | None = key(
        None, "How.", parts={"cert_file": "--cert FILE", "ca_file": "--ca"}
    )


def test_a_message_names_the_options_of_settings() -> None:
    with pytest.raises(ConfigError, match=r"node port \(--listen\): found -1 "):
        Listens(-1)
    assert Listens.named("name") == "node name"
    assert Listens.named("port", "tls") == "node port, tls (--listen, --cert, --ca)"
    assert Listens.named("tls.ca_file") == "node tls.ca_file (--ca)"


def test_a_section_takes_the_values_that_it_shares() -> None:
    assert section_of(Owner, Shows(5.0, "x")) == Owner(5.0, 1, "x")
    assert section_of(Owner, Shows(5.0, "x"), tasks=4, password="y") == Owner(5.0, 4, "y")
    assert section_of(Owner, Declares(7.0, 3)) == Owner(), "another setting of the same name"
