"""Options that several commands share: where the settings come from."""

import argparse
from pathlib import Path

from dcp.errors import ConfigError
from dcp.lake.config.settings import Settings
from dcp.lake.config.settings_load import load_settings


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, ``--lake`` and ``--set``."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file; conf/dcplake.toml lists every key"
    )
    parser.add_argument("--lake", metavar="PATH", help="short for --set lake.root=PATH")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one setting (repeatable)",
    )


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Load the settings that the shared options name.

    Raises:
        ConfigError: see ``load_settings``; also a ``--set`` without ``=``.

    """
    overrides: dict[str, object] = {}
    for word in arguments.set:
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"--set: found {word!r}, expected SECTION.KEY=VALUE")
        overrides[name] = value
    if arguments.lake is not None:
        overrides["lake.root"] = arguments.lake
    return load_settings(arguments.config, overrides=overrides)
