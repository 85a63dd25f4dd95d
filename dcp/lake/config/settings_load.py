"""Loads settings from a TOML file, the environment and options. Each overrides those before it.

The environment variable of a setting is ``DCPLAKE_<SECTION>_<KEY>`` (lists separated by commas,
tables as ``name=value`` pairs separated by commas). Options have the form ``section.key``. Every
unknown name and every bad value is an error.

Paths of the file, and defaults beside it, are relative to the file's folder. Paths of variables and
options are relative to the current folder of each process that uses them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dcp.errors import ConfigError
from dcp.lake.config.lake_root import parts_of
from dcp.lake.config.settings import INSTALLED_SUITE, SECTIONS, Settings
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.config.toml_file import read_toml
from dcp.records import default_of
from dcp.setting_keys import (
    describe_expected,
    describe_found,
    shown_settings,
    texts_of,
)
from dcp.suggestions import did_you_mean, refusal_of_gone

PATHS: Final = frozenset(
    (name, each.name)
    for name, section in SECTIONS.items()
    for each in shown_settings(section)
    if each.metadata["is_path"]
)
"""The settings that are paths: section and key."""


def resolved(name: str, value: str, folder: Path) -> str:
    """Return a setting's value, resolved in ``folder`` if it is a relative path."""
    is_suite = name == "quality.gate" and value == INSTALLED_SUITE
    if parts_of(value).scheme or not value.strip() or is_suite:
        return value
    return str(folder / Path(value).expanduser())


def with_paths_resolved(values: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Return values by setting (``section.key``), their paths as `resolved`."""
    paths = {".".join(path) for path in PATHS}
    return {
        name: resolved(name, value, folder) if name in paths and isinstance(value, str) else value
        for name, value in values.items()
    }


def require_no_lake_here(written: str, root: str, file: Path) -> None:
    """Raise ConfigError if ``root`` holds no lake, but the same relative path from here does.

    Otherwise a run would read the bucket into a second lake, and a report would miss the first.
    """
    here = Path.cwd() / written
    if (
        not written
        or Path(written).is_absolute()
        or resolved("lake.root", written, Path.cwd()) != str(here)
    ):
        return
    if _is_lake(here) and not _is_lake(Path(root)):
        raise ConfigError(
            f"{file}: lake.root: found no lake in {root}, but one in {here}; a relative path is"
            f" relative to the folder of the file; write root = {str(here)!r} for the lake that is"
            " there, or start from another folder to make a new one"
        )


def _is_lake(folder: Path) -> bool:
    return os.path.isdir(folder / CHANGES_TABLE / "_delta_log")  # noqa: PTH112 -- says no where it may not look


PREFIX: Final = "DCPLAKE_"


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    where: str
    is_text: bool = False
    written: str = ""
    """A path as the file has it, or its default."""


def load_settings(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Return the settings of ``path`` (if any), overridden by the environment and ``overrides``.

    ``overrides`` maps ``section.key`` to a value; texts are read as in the environment.

    Raises:
        ConfigError: a section or key does not exist, a value has the wrong type or is out of range,
            values contradict each other, or a file cannot be read. The message names the file (or
            variable, or option), the key, found and expected.
    """
    given: dict[str, dict[str, _Given]] = {name: {} for name in SECTIONS}
    if path is not None:
        _take_file(path, given)
    _take_environment(os.environ if environment is None else environment, given)
    for name, value in (overrides or {}).items():
        section, _, key = name.partition(".")
        _require_known(section, key, f"option {name}")
        given[section][key] = _Given(value, "options", isinstance(value, str))
    settings = Settings(**{name: _build(name, keys) for name, keys in given.items()})
    if path is not None and not settings.lake.schema:
        require_no_lake_here(given["lake"]["root"].written, settings.lake.root, path)
    return settings


def _take_file(path: Path, given: dict[str, dict[str, _Given]]) -> None:
    def give(section: str, key: str, value: object) -> None:
        known = _Given(value, str(path))
        if (section, key) in PATHS and isinstance(value, str):
            absolute = resolved(f"{section}.{key}", value, path.absolute().parent)
            known = _Given(absolute, str(path), written=value)
        given[section][key] = known

    content = read_toml(path, "configuration")
    for section, key in PATHS:
        if default := getattr(SECTIONS[section](), key):
            give(section, key, default)
    for section, keys in content.items():
        if section in SECTIONS and not isinstance(keys, dict):
            raise ConfigError(
                f"{path}: {section}: found a value of type {type(keys).__name__}, "
                f"expected the section [{section}]"
            )
        if section not in SECTIONS:
            raise ConfigError(
                f"{path}: found {section!r}{did_you_mean(section, SECTIONS)}, expected only the "
                f"sections {', '.join(SECTIONS)}"
            )
        for key, value in keys.items():
            _require_known(section, key, f"{path}: {section}.{key}")
            give(section, key, value)


def _take_environment(environment: Mapping[str, str], given: dict[str, dict[str, _Given]]) -> None:
    of_passwords = given["source"].get("password_env")
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        rest = name.removeprefix(PREFIX).lower()
        section = next((each for each in SECTIONS if rest.startswith(f"{each}_")), None)
        if section is None:
            if of_passwords is None or name != of_passwords.value:
                _refuse_misspelt_section(name, rest.split("_"))
            continue
        key = rest.removeprefix(f"{section}_")
        _require_known(section, key, f"environment variable {name}")
        given[section][key] = _Given(text, f"environment variable {name}", is_text=True)


def _refuse_misspelt_section(name: str, words: Sequence[str]) -> None:
    if words[0] in SECTIONS:
        raise ConfigError(
            f"environment variable {name}: found a section without a key, expected "
            f"{PREFIX}{words[0].upper()}_<KEY>"
        )
    for section in ("_".join(words[:2]), words[0]):
        if meant := did_you_mean(section, SECTIONS):
            raise ConfigError(
                f"environment variable {name}: unknown section {section!r}{meant}, expected "
                f"{', '.join(SECTIONS)}"
            )


def _require_known(section: str, key: str, where: str) -> None:
    if section not in SECTIONS:
        raise ConfigError(
            f"{where}: unknown section {section!r}{did_you_mean(section, SECTIONS)}, expected "
            f"{', '.join(SECTIONS)}"
        )
    if (refusal := refusal_of_gone(f"{section}.{key}")) is not None:
        raise ConfigError(f"{where}: {refusal}")
    known = [known.name for known in shown_settings(SECTIONS[section])]
    if key not in known:
        raise ConfigError(
            f"{where}: unknown key {key!r}{did_you_mean(key, known)}, section {section} has "
            f"{', '.join(known)}"
        )


def _build(section: str, given: Mapping[str, _Given]) -> Any:
    kind = SECTIONS[section]
    values = {}
    for key in shown_settings(kind):
        if (entry := given.get(key.name)) is not None:
            values[key.name] = _typed(section, key, entry)
    try:
        return kind(**values)
    except ConfigError as error:  # the section names the key; only we know where it was given
        told = str(error).removeprefix(f"{section}.")
        key_name = told.partition(":")[0]
        files = dict.fromkeys(each.where for each in given.values())
        where = given[key_name].where if key_name in given else ", ".join(files) or "defaults"
        raise ConfigError(f"{where}: {section}.{told}") from None


def _typed(section: str, key: "Field[Any]", entry: _Given) -> object:
    default = default_of(key)
    value = entry.value
    if entry.is_text and isinstance(value, str):
        value = _from_text(value, default)
        if value is None:
            expected = describe_expected(key)
            if isinstance(default, tuple):
                expected += ", here with commas between: a,b"
            if isinstance(default, Mapping):
                expected += ", here as name=value with commas between"
            found = describe_found(entry.value, key.metadata)
            raise ConfigError(
                f"{entry.where}: {section}.{key.name}: found {found}, expected {expected}"
            )
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if isinstance(default, Mapping) and isinstance(value, dict):
        return MappingProxyType(value)
    return value


def _from_text(text: str, default: object) -> object | None:
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.strip().lower())
    if isinstance(default, int | float):
        try:
            return int(text) if isinstance(default, int) else float(text)
        except ValueError:
            return None
    if isinstance(default, tuple):
        if text.lstrip().startswith(('["', "['")):  # as in a file; [::1]:11210 is an address
            return None
        return texts_of(text)
    if isinstance(default, Mapping):
        pairs = [part.partition("=") for part in text.split(",") if part.strip()]
        if not all(separator for _, separator, _ in pairs):
            return None
        return {name.strip(): value.strip() for name, _, value in pairs}
    return text
