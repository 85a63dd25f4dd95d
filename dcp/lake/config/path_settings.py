"""Places the relative paths of a configuration file: its folder counts, not the current one.

So a file means the same lake, certificates and contracts wherever a command is started, by cron for
one.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError
from dcp.lake.config.lake_root import parts_of
from dcp.lake.config.settings import INSTALLED_SUITE, SECTIONS

PATHS: Final = frozenset(
    (name, each.name)
    for name, section in SECTIONS.items()
    for each in fields(section)
    if each.metadata["is_path"]
)
"""The settings that are paths: section and key."""


def placed(name: str, value: str, folder: Path) -> str:
    """Return a setting's value, placed in ``folder`` if it is a relative path."""
    is_suite = name == "quality.gate" and value == INSTALLED_SUITE
    if parts_of(value).scheme or not value or is_suite:
        return value
    return str(folder / Path(value).expanduser())


def with_paths_placed(values: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Return values by setting (``section.key``), their paths as `placed`."""
    paths = {".".join(path) for path in PATHS}
    return {
        name: placed(name, value, folder) if name in paths and isinstance(value, str) else value
        for name, value in values.items()
    }


def require_no_lake_here(written: str, root: str, file: Path) -> None:
    """Raise ConfigError if ``root`` is no lake, but its relative path from here is one.

    Else a run would read the bucket into a second lake, and a report would miss the first.
    """
    here = Path.cwd() / written
    if (
        not written
        or Path(written).is_absolute()
        or placed("lake.root", written, Path.cwd()) != str(here)
    ):
        return
    if _is_lake(here) and not _is_lake(Path(root)):
        raise ConfigError(
            f"{file}: lake.root: found no lake in {root}, but one in {here}; a relative path is"
            f" relative to the folder of the file: write root = {str(here)!r} for the lake that is"
            " there, or start from another folder to make a new one"
        )


def _is_lake(folder: Path) -> bool:
    return os.path.isdir(folder / "changes" / "_delta_log")  # noqa: PTH112 -- says no where it may not look
