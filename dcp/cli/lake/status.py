"""``dcplake status``: where the lake stands, and what it waits for.

Where a run is going on that this machine can see, also what each of its connections waits for; and
where the source is a relay, what that one waits for.
"""

from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    json: Annotated[bool, Option("--json", help="the status as one JSON object")] = False,
) -> int:
    """Read and print."""
    from dcp.lake.monitor.figures_reader import read_figures

    settings = settings_from(config, lake, overrides)
    figures = read_figures(settings, searches=False, asks_source=True)
    if json:
        say_json(figures.to_json())
    else:
        say(str(figures))
    return 0
