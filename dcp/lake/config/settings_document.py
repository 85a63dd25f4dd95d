"""Writes configuration files: every setting with its meaning, unit and value.

``python -m dcp.lake.config.settings_document > conf/dcplake.toml`` after a setting was changed; a
test compares the file, which has all of them commented out, with what this writes.
"""

import json
import sys
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import Field
from typing import Any, Final

from dcp.lake.config.settings import SECTIONS, Settings
from dcp.printable import unicode_escape
from dcp.records import default_of
from dcp.setting_keys import Section, describe_expected, shown_settings

_HEAD = """\
# Configuration of dcplake: every key with its meaning, unit and default.
# Remove the `#` in front of a key to change it; unknown keys are errors.
# The environment variable DCPLAKE_<SECTION>_<KEY> wins over this file, an option over both.
# A relative path is relative to the folder of this file.
"""


_HEAD_OF_CHOSEN: Final = """\
# Configuration of dcplake, made by `dcplake init`; what is not here has its default.
# docs/reference/settings.md lists every key. The environment variable DCPLAKE_<SECTION>_<KEY> wins
# over this file, an option over both. A relative path is relative to the folder of this file.
"""


def document() -> str:
    """Return a file of all settings."""
    lines: list[str] = [_HEAD]
    for name, section in SECTIONS.items():
        lines += _section_lines(name, section)
        for key in shown_settings(section):
            lines += [*_comment(key), f"#{key.name} = {toml_value(default_of(key))}", ""]
    return "\n".join(lines) + "\n"


def document_of(settings: Settings, names: Collection[str]) -> str:
    """Return a file of the settings with these names (``section.key``)."""
    lines: list[str] = [_HEAD_OF_CHOSEN]
    for name, section in SECTIONS.items():
        chosen = getattr(settings, name)
        keys = [key for key in shown_settings(section) if f"{name}.{key.name}" in names]
        lines += _section_lines(name, section) if keys else ()
        for key in keys:
            value = getattr(chosen, key.name)
            lines += [*_comment(key), f"{key.name} = {toml_value(value)}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _section_lines(name: str, section: type[Section]) -> tuple[str, ...]:
    return f"[{name}]", f"# {(section.__doc__ or '').strip()}", ""


def _comment(key: "Field[Any]") -> list[str]:
    return textwrap.wrap(
        f"{key.metadata['text']} Value: {describe_expected(key)}.",
        width=96,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def toml_value(value: object) -> str:
    """Return a value in TOML, in printable characters."""
    if isinstance(value, Mapping):
        pairs = (f"{toml_value(name)} = {toml_value(part)}" for name, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 100_000:
        return f"{value:_}"
    # TOML has the escapes of JSON, but no surrogates. A terminal shows printable characters alone.
    text = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return "".join(each if each.isprintable() else unicode_escape(each) for each in text)


if __name__ == "__main__":
    sys.stdout.write(document())
