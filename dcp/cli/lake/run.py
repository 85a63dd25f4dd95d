"""``dcplake run``: replicate a bucket, once or on and on."""

from typing import Annotated

from typer import Option

from dcp.cli.displays.run_output import JsonObserver, PlainObserver, say_event
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say


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
    http: Annotated[
        str | None,
        Option(
            metavar="[HOST:]PORT",
            help="serve a page, /metrics and /health there; without a host on 127.0.0.1",
        ),
    ] = None,
    json: Annotated[bool, Option("--json", help="one JSON object per step")] = False,
) -> int:
    """Replicate."""
    from dcp.lake.run.replicate import run as replicate

    settings = settings_from(config, lake, overrides)
    observer = JsonObserver() if json else PlainObserver()
    if http is None:
        replicate(settings, once=once, observer=observer)
        _say_end(once=once, json=json)
        return 0
    from dcp.lake.monitor.run_server import RunServer, http_address
    from dcp.lake.monitor.run_watch import RunWatch

    address = http_address(http)
    watch = RunWatch(observer, settings.round)
    with RunServer(address, settings, watch):
        if not json:
            say(f"the run is shown at http://{address}/")
        replicate(settings, once=once, observer=watch)
    _say_end(once=once, json=json)
    return 0


def _say_end(*, once: bool, json: bool) -> None:
    """Say that a run without an end was stopped, which is no failure."""
    if once:
        return
    if json:
        say_event("stopped", {})
    else:
        say("stopped: what was read is committed, the next run goes on from there")
