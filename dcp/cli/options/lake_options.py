"""Options that the commands of a lake share: where the settings come from."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dcp.errors import ConfigError
from dcp.lake.config.settings import Settings
from dcp.lake.config.settings_load import load_settings

Config = Annotated[
    Path | None,
    Option("--config", metavar="FILE", help="TOML file; conf/dcplake.toml lists every key"),
]
Lake = Annotated[
    str | None, Option("--lake", metavar="PATH", help="short for --set lake.root=PATH")
]
Overrides = Annotated[
    list[str] | None,
    Option("--set", metavar="SECTION.KEY=VALUE", help="override one setting (repeatable)"),
]


def override_values(overrides: list[str] | None) -> dict[str, object]:
    """Return the values of ``--set`` by the names of their settings.

    Raises:
        ConfigError: one without ``=``.

    """
    values: dict[str, object] = {}
    for word in overrides or ():
        name, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"--set: found {word!r}, expected SECTION.KEY=VALUE")
        values[name] = value
    return values


def settings_from(config: Path | None, lake: str | None, overrides: list[str] | None) -> Settings:
    """Load the settings that the shared options name.

    Raises:
        ConfigError: see ``load_settings``; also a ``--set`` without ``=``.

    """
    values = override_values(overrides)
    if lake is not None:
        values["lake.root"] = lake
    return load_settings(config, overrides=values)
