"""Each setting is declared once, whichever sections show it."""

import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from pathlib import Path

import pytest

from dcp.errors import ConfigError
from dcp.setting_keys import Section, key, key_of, section_of

ROOT = Path(__file__).parents[1]

OTHER_THINGS = {"bucket", "bucket_uuid", "rules"}
"""Names that stand for two settings.

A cluster has one bucket, a client reads one. A producer follows the rules of a server or of DCP's
document; a lake's rules are those of privacy.
"""


def sections() -> list[type[Section]]:
    """All that `dcp` has, by the files that say so."""
    found = []
    for path in sorted((ROOT / "dcp").rglob("*.py")):
        names = re.findall(r"(?m)^class (\w+)\(Section\)", path.read_text(encoding="utf-8"))
        if names:
            module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            found += [getattr(module, name) for name in names]
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


def test_a_section_takes_the_values_that_it_shares() -> None:
    assert section_of(Owner, Shows(5.0, "x")) == Owner(5.0, 1, "x")
    assert section_of(Owner, Shows(5.0, "x"), tasks=4, password="y") == Owner(5.0, 4, "y")
    assert section_of(Owner, Declares(7.0, 3)) == Owner(), "another setting of the same name"
