"""Reads a TOML file; what is no TOML is told with the line, and what it lacks."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from dcp.errors import ConfigError

_LINE: Final = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")
_SETTING: Final = re.compile(r"\s*(?P<key>[^=#]*?)\s*=\s*(?P<value>.*)")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return a file's content; messages call the file ``what``."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the {what}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: found no valid TOML: {error}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = _hint(text, str(error))
        raise ConfigError(f"{path}: found no valid TOML: {error}{hint}") from None


def _hint(text: str, message: str) -> str:
    """Return a hint for a line without quotes or with backslashes; shows no value."""
    # TOML knows one end of a line; others that Python knows are characters of a line.
    lines = text.split("\n")
    found = _LINE.search(message)
    if found is None:  # "at end of document"
        line = next((each for each in reversed(lines) if each.strip()), "")
    else:
        line = "".join(lines[int(found[1]) - 1 : int(found[1])])
    setting = _SETTING.fullmatch(line)
    if setting is None:  # of a list over several lines
        return '; texts stand in quotes: "…"' if message.startswith("Invalid value") else ""
    key, value = setting["key"], setting["value"]
    if _is_toml(line) or not _is_toml(f"{key} = 0"):
        return ""
    if value.startswith("["):
        return f'; texts of a list stand in quotes: {key} = ["…", "…"]'
    if value.startswith("{"):
        return f'; texts of a table stand in quotes: {key} = {{name = "…"}}'
    if value.startswith('"') and "\\" in value:
        return f"; a text with \\ stands in single quotes: {key} = '…'"
    return f'; a text stands in quotes: {key} = "…"'


def _is_toml(line: str) -> bool:
    try:
        tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return False
    return True
