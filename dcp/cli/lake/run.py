"""``dcplake run``: replicate a bucket, once or on and on."""

from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.views.run_output import JsonObserver, PlainObserver


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    once: Annotated[
        bool,
        Option(
            "--once",
            help="end when what the cluster holds now is applied; without it, go on until stopped",
        ),
    ] = False,
    json: Annotated[bool, Option("--json", help="one JSON object per step")] = False,
) -> int:
    """Replicate."""
    from dcp.lake.run.run import run as replicate

    observer = JsonObserver() if json else PlainObserver()
    replicate(settings_from(config, lake, overrides), once=once, observer=observer)
    return 0
