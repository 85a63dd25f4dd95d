"""``dcplake plan``: what the next round would do, without doing it."""

from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    json: Annotated[bool, Option("--json", help="the plan as one JSON object")] = False,
) -> int:
    """Plan and print."""
    from dcp.lake.run.preview import preview

    plan = preview(settings_from(config, lake, overrides))
    if json:
        say_json(plan.to_json())
    else:
        say(str(plan))
    return 0
