"""``dcplake plan``: what the next round would do, or a backfill, without doing it."""

from typing import Annotated

from typer import BadParameter, Option

from dcp.cli.options.backfill_options import From, Rate, Vbuckets
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.lake.rounds.backfill_plan import REPLICAS


def run(  # noqa: PLR0913  (an argument for each option)
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    backfill: Annotated[
        bool,
        Option("--backfill", help="estimate a backfill; the options that follow are its"),
    ] = False,
    vbuckets: Vbuckets = None,
    nodes: From = REPLICAS,
    rate: Rate = None,
    json: Annotated[bool, Option("--json", help="the plan as one JSON object")] = False,
) -> int:
    """Plan and print."""
    from dcp.lake.run.preview import preview, preview_backfill

    chosen = (vbuckets, rate) != (None, None) or nodes != REPLICAS
    if chosen and not backfill:
        raise BadParameter("found options of a backfill without --backfill, expected it with them")
    settings = settings_from(config, lake, overrides)
    plan = preview_backfill(settings, vbuckets, nodes, rate) if backfill else preview(settings)
    if json:
        say_json(plan.to_json())
    else:
        say(str(plan))
    return 0
