"""Declares settings: of a lake's configuration, a client, the embedded cluster, and a relay.

A setting's default, meaning, unit and allowed range stand beside it (``key``), in the section that
owns it. A section that inherits from the owner has all of its settings; ``section_of`` hands their
values on. ``key_of`` is a setting under another name, or with other bounds or words. A section
checks all of its values when it is made.
Configuration files and options of commands are derived from that.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

from dcp.errors import ConfigError
from dcp.records import default_of
from dcp.suggestions import bytes_meant

_NO_PARTS: Final[Mapping[str, str]] = MappingProxyType({})


def key(  # noqa: PLR0913 -- a fact each
    default: Any,
    text: str,
    *,
    unit: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    may_be_empty: bool = False,
    may_be_secret: bool = False,
    is_path: bool = False,
    is_internal: bool = False,
    option: str = "",
    parts: Mapping[str, str] = _NO_PARTS,
    parse: Callable[[str], Any] | None = None,
) -> Any:
    """Return the field of a setting: its default, meaning and bounds; MISSING has no default.

    If the default is an enum's member, the members are the ``choices``, and a text becomes one.
    The value must be larger than ``above``. A text must not be blank; it may be empty if the
    default is, or if it ``may_be_empty``. ``may_be_secret``: somebody may write a secret here by
    mistake, so no message and no repr shows the value. ``is_path``: a relative path in a
    configuration file begins at the file's folder. ``is_internal``: only code sets it, and no
    configuration file may. ``option`` is its command-line option, such as ``--data FOLDER``, with
    the word for its value if the type and unit do not tell; empty: none. Messages name it. If
    the setting is itself a section (such as TLS), ``parts`` maps names of its settings to options,
    with a meaning after a colon if theirs does not fit, and ``option`` is a flag. The setting is
    None unless one of them is given.
    ``parse`` makes the value from a text, wherever the text is given, and raises ConfigError; the
    default may be such a text.
    """
    if isinstance(default, StrEnum):
        choices = tuple(type(default))
    facts: dict[str, Any] = {"text": text, "unit": unit}
    facts |= {"may_be_empty": may_be_empty, "may_be_secret": may_be_secret}
    facts |= {"least": least, "above": above, "most": most}
    facts |= {"choices": choices, "is_path": is_path, "is_internal": is_internal}
    facts |= {"option": option, "parts": parts, "parse": parse, "declaration": object()}
    return _field(default, facts)


def key_of(section: "type[Section]", name: str, **changes: Any) -> Any:
    """Return the field of a setting that ``section`` declares, under another name or changed.

    ``changes`` are arguments of `key` that differ; a comment at the call says why a default does.
    """
    (owned,) = (each for each in fields(section) if each.name == name)
    if unknown := changes.keys() - owned.metadata.keys() - {"default"}:
        raise TypeError(f"key_of: found {sorted(unknown)}, expected arguments of key")
    return _field(changes.pop("default", default_of(owned)), {**owned.metadata, **changes})


def texts_of(text: str) -> tuple[str, ...]:
    """Return the texts between the commas of a text; none if it is empty."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def _field(default: Any, facts: Mapping[str, Any]) -> Any:
    is_shown = not facts["may_be_secret"]
    if isinstance(default, Mapping):
        given = dict(default)
        return field(default_factory=lambda: MappingProxyType(given), metadata=facts, repr=is_shown)
    return field(default=default, metadata=facts, repr=is_shown)


@dataclass(frozen=True, slots=True)
class Section:
    """Base of the sections: checks each value's type, range and choice, and parses texts.

    A field that is no ``key`` is checked by the section itself. A section from which others inherit
    takes its values by keyword: then its settings come after those of the section that inherits.
    It has no slots if it shares a heir with another section: two bases with slots exclude each
    other.
    """

    subject: ClassVar[str] = ""
    """Messages begin with it."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not each.metadata:
                continue
            value, parse = getattr(self, each.name), each.metadata["parse"]
            if parse is None:
                _check(each, value, self.named(each.name))
                parse = type(each.default) if isinstance(each.default, StrEnum) else None
            if parse is not None and isinstance(value, str):
                object.__setattr__(self, each.name, parse(value))

    @classmethod
    def named(cls, *names: str) -> str:
        """Return what a message about these settings begins with: subject, names and options."""
        return f"{cls.subject}{', '.join(dict.fromkeys(names))}{cls.option_words(*names)}"

    @classmethod
    def option_words(cls, *names: str) -> str:
        """Return the options of settings, in brackets after a space; nothing if they have none.

        ``tls.ca_file`` is a part (`key`) of a setting; a setting with parts has their options.
        """
        by_name = {each.name: each.metadata for each in fields(cls)}
        found: list[str] = []
        for name in names:
            setting, _, part = name.partition(".")
            facts = by_name[setting]
            parts = [facts["parts"][part]] if part else [facts["option"], *facts["parts"].values()]
            found += map(option_name, filter(None, parts))
        return f" ({', '.join(dict.fromkeys(found))})" if found else ""


def shown_settings(section: type[Section]) -> list[Field[Any]]:
    """Return the settings that people give: those of the section, then those that it inherits."""
    by_name = {each.name: each for each in fields(section)}
    names = [name for name in section.__annotations__ if name in by_name]
    settings = [by_name[name] for name in dict.fromkeys([*names, *by_name])]
    return [each for each in settings if not each.metadata["is_internal"]]


_S = TypeVar("_S", bound=Section)


def section_of(made: type[_S], *holders: Section, **others: Any) -> _S:
    """Return a section with the values of the settings that ``holders`` share with it.

    ``others`` are further values by name; they win over those of the holders.
    """
    declared = {each.name: each.metadata.get("declaration") for each in fields(made)}
    values = {
        each.name: getattr(holder, each.name)
        for holder in holders
        for each in fields(holder)
        if each.metadata and declared.get(each.name) is each.metadata["declaration"]
    }
    return made(**{**values, **others})


def option_name(words: str) -> str:
    """Return the option of the words that declare it (``option`` and ``parts`` of `key`)."""
    return re.split("[ :]", words, maxsplit=1)[0]


def _check(setting: Field[Any], value: object, named: str) -> None:
    facts = setting.metadata
    found, expected = describe_found(value, facts), describe_expected(setting)
    problem = ConfigError(f"{named}: found {found}, expected {expected}")
    if not _has_type(setting, value):
        raise problem
    least, above, most, choices = (facts[name] for name in ("least", "above", "most", "choices"))
    # A blank text is a mistake even where an empty one means none.
    if isinstance(value, str) and not value.strip() and (value or _needs_text(setting)):
        raise problem
    if isinstance(value, int | float) and not isinstance(value, bool):
        too_small = (least is not None and not value >= least) or (
            above is not None and not value > above
        )
        is_infinite = value in _INFINITE and value != most
        if too_small or (most is not None and not value <= most) or is_infinite:
            raise problem
    if choices and value not in choices:
        raise problem


def _has_type(setting: Field[Any], value: object) -> bool:
    default = setting.default
    if isinstance(default, float):
        return type(value) in (int, float)
    if isinstance(default, StrEnum):
        return type(value) in (str, type(default))
    if isinstance(default, bool | int | str) or setting.type is str:
        return type(value) is (str if default is MISSING else type(default))
    if _may_be_no_number(setting):
        return value is None or type(value) in (int, float)
    if isinstance(default, tuple) and all(isinstance(item, str) for item in default):
        return (
            isinstance(value, tuple)
            and (bool(value) or not default)
            and all(isinstance(item, str) and item.strip() for item in value)
        )
    if setting.default_factory is not MISSING:
        return isinstance(value, Mapping) and all(
            isinstance(part, str) for item in value.items() for part in item
        )
    return True


_INFINITE: Final = (float("inf"), float("-inf"))


def _needs_text(setting: Field[Any]) -> bool:
    """Return whether a text may not be blank."""
    return bool(default_of(setting)) and not setting.metadata["may_be_empty"]


def _may_be_no_number(setting: Field[Any]) -> bool:
    """Return whether a setting is a number or None, its default."""
    return setting.default is None and setting.metadata["least"] is not None


def describe_found(value: object, facts: Mapping[str, Any]) -> str:
    """Describe a setting's value and type; for a possible secret only types and keys."""
    if not facts["may_be_secret"] or not str(value).strip():
        meant = bytes_meant(str(value)) if facts["unit"] == "bytes" else ""
        return f"{value!r} ({type(value).__name__}){meant}"
    if not isinstance(value, Mapping):
        return f"a value of type {type(value).__name__}"
    wrong = {name: part for name, part in value.items() if not isinstance(part, str)}
    told = (f"{name!r} of type {type(part).__name__}" for name, part in wrong.items())
    return ", ".join(told) or "a table of texts"


def describe_expected(setting: Field[Any]) -> str:
    default, facts = default_of(setting), setting.metadata
    if facts["choices"]:
        return "one of " + ", ".join(f'"{choice}"' for choice in facts["choices"])
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, int | float) or _may_be_no_number(setting):
        words = "an integer" if isinstance(default, int) else "a number"
        if facts["least"] is not None and facts["most"] is not None:
            words += f" from {facts['least']} to {facts['most']}"
        elif facts["least"] is not None:
            words += f", {facts['least']} or more"
        elif facts["above"] is not None:
            words += f" above {facts['above']:g}"
            words += "" if facts["most"] is None else f", at most {facts['most']:g}"
        return words + (f" ({facts['unit']})" if facts["unit"] else "")
    if isinstance(default, str) or setting.type is str:
        return "a non-empty text" if _needs_text(setting) else "a text, not only spaces"
    if isinstance(default, tuple):
        return "a list of one or more non-empty texts" if default else "a list of non-empty texts"
    return "a table of texts"
