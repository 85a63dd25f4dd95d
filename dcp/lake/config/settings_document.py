"""Writes ``conf/dcplake.toml``: every setting with its meaning, unit and default, commented out.

``python -m dcp.lake.config.settings_document > conf/dcplake.toml`` after a setting was changed; a
test compares the file with what this writes.
"""

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields

from dcp.lake.config.setting_keys import describe_expected
from dcp.lake.config.settings import SECTIONS

_HEAD = """\
# Configuration of dcplake: every key with its meaning, unit and default.
# Remove the `#` in front of a key to change it; unknown keys are errors.
# The environment variable DCPLAKE_<SECTION>_<KEY> wins over this file, an option over both.
"""


def document() -> str:
    """Return the whole file."""
    return "\n".join([_HEAD, *_lines()]) + "\n"


def _lines() -> Iterator[str]:
    for name, section in SECTIONS.items():
        yield f"[{name}]"
        yield f"# {(section.__doc__ or '').strip()}"
        yield ""
        for key in fields(section):
            default = key.default if key.default is not MISSING else {}
            expected = describe_expected(default, key.metadata)
            yield from textwrap.wrap(
                f"{key.metadata['text']} Value: {expected}.",
                width=96,
                initial_indent="# ",
                subsequent_indent="# ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            yield f"#{key.name} = {toml_value(default)}"
            yield ""


def toml_value(value: object) -> str:
    """Return a setting's value as TOML has it."""
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 100_000:
        return f"{value:_}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    sys.stdout.write(document())
