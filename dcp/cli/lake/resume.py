"""``dcplake resume``: continue the rounds of a paused lake."""

from typing import Annotated

from typer import Option

from dcp.cli.lake.pause import ask_and_say
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    json: Annotated[bool, Option("--json", help="the request as one JSON object")] = False,
) -> int:
    """Ask the driver of the lake, which need not run now."""
    from dcp.lake.change_log.control import RequestAction

    settings = settings_from(config, lake, overrides)
    return ask_and_say(settings, RequestAction.RESUME, "rounds begin again", json=json)
