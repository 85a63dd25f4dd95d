"""``dcplake pause``: stop further rounds of a lake until it is resumed."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.lake.config.settings import Settings

if TYPE_CHECKING:
    from dcp.lake.change_log.control import RequestAction


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
    return ask_and_say(
        settings, RequestAction.PAUSE, "no further round begins until dcplake resume", json=json
    )


def ask_and_say(
    settings: Settings,
    action: "RequestAction",
    effect: str,
    vbuckets: Collection[int] | None = None,
    *,
    json: bool,
) -> int:
    """Write a request into the lake's table ``control``, and say what it will do."""
    from dcp.lake.run.control_requests import ask

    asked = ask(settings, action, vbuckets)
    if json:
        say_json({"id": asked.id, "action": asked.action, "vbuckets": asked.vbuckets})
    else:
        say(f"{action} {asked.id}: {effect}")
    return 0
