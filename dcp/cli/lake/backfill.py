"""``dcplake backfill``: rebuild vbuckets from replica vbuckets during replication."""

from typing import Annotated

from typer import Option

from dcp.cli.displays.run_output import JsonObserver, PlainObserver, say_event
from dcp.cli.options.backfill_options import From, Rate, Vbuckets
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say
from dcp.lake.rounds.backfill_plan import REPLICAS

EPILOG = (
    "Where a run is going on, that process does the work and this command watches it. Killed, it "
    "goes on when it is called again, or with the next run."
)


def run(  # noqa: PLR0913  (an argument for each option)
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    vbuckets: Vbuckets = None,
    nodes: From = REPLICAS,
    rate: Rate = None,
    cancel: Annotated[bool, Option("--cancel", help="end the backfill that is open")] = False,
    json: Annotated[bool, Option("--json", help="one JSON object per step")] = False,
) -> int:
    """Ask for the backfill, and see it done."""
    from dcp.lake.run.backfill_command import backfill, cancel_backfill

    settings = settings_from(config, lake, overrides)
    if cancel:
        ended = cancel_backfill(settings)
        event, fields = "cancelling", {"id": ended.id}
        text = f"backfill {ended.id}: whoever drives the lake next ends it before another round"
    else:
        observer = JsonObserver() if json else PlainObserver()
        ended = backfill(settings, vbuckets, nodes, rate, observer=observer)
        event, fields = str(ended.state), {"id": ended.id, "detail": ended.detail}
        text = f"backfill {ended.id}: {ended.state}, {ended.detail}"
    if json:
        say_event(event, fields)
    else:
        say(text)
    return 0
