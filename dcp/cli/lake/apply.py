"""``dcplake apply``: merge received rounds into the replica tables, for runs that do not apply."""

from typing import Annotated, Final

from typer import Option

from dcp.cli.displays.run_output import JsonObserver, PlainObserver
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say

EPILOG: Final = """\
For runs with apply.when = "never", on a cadence of its own. It reads the lake, not the cluster."""


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    json: Annotated[bool, Option("--json", help="one JSON object per new version")] = False,
) -> int:
    """Apply, and tell of each new version."""
    from dcp.lake.run.replicate import apply_pending

    settings = settings_from(config, lake, overrides)
    made = apply_pending(settings, observer=JsonObserver() if json else PlainObserver())
    if not made and not json:
        say("nothing to apply: all that was received and is complete is in the tables")
    return 0
