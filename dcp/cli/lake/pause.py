"""``dcplake pause``: let no further round of a lake begin, until it is resumed."""

from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    json: Annotated[bool, Option("--json", help="the request as one JSON object")] = False,
) -> int:
    """Ask the driver of the lake, which need not run now."""
    from dcp.lake.run.pause import ask
    from dcp.lake.run.requests import PAUSE

    asked = ask(settings_from(config, lake, overrides), PAUSE)
    if json:
        say_json({"id": asked.id, "action": asked.action})
    else:
        say(f"pause {asked.id}: no further round begins until dcplake resume")
    return 0
