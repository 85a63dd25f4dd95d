"""``dcplake top``: connections, windows and stages of a running run, as they are now.

Reads the task board of the lake, or asks a producer or a relay; starts no Spark. Where the output
is no terminal it shows one look.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import sleep
from typing import Annotated, Any, Final

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccount
from dcp.cli.terminal.output import say
from dcp.client.settings import ConnectionSettings
from dcp.errors import ConfigError
from dcp.printable import printable_lines
from dcp.protocol.credentials import Credentials, Secret

_REFRESH_SECONDS: Final = 1.0


@takes_settings
def run(  # noqa: PLR0913  (an argument for each option)
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    producer: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="DCP connections of a producer instead; its HTTP port"),
    ] = None,
    relay: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="DCP connections of a relay instead; its HTTP port"),
    ] = None,
    metrics: Annotated[
        bool, Option("--metrics", help="print once, as Prometheus reads it (text format)")
    ] = False,
    account: ProducerAccount,
    connection: Annotated[Mapping[str, Any], ConnectionSettings],
    once: Annotated[bool, Option("--once", help="one look, also on a terminal")] = False,
    json: Annotated[bool, Option("--json", help="one JSON object for each look")] = False,
) -> int:
    """Show until ctrl-c, or once."""
    if producer and relay:
        raise ConfigError("--producer, --relay: found both, expected one of them")
    settings = settings_from(config, lake, overrides)
    is_once = once or metrics or not sys.stdout.isatty()
    if address := producer or relay:
        from dcp.cli.displays.node_connections import looks_at_node, node_shown

        nodes = looks_at_node(
            address,
            Credentials(account.username, Secret(account.password())),
            connection["tls"],
            allows_plain=settings.source.allow_plain,
            is_relay=bool(relay),
        )
        shown = (node_shown(each, metrics=metrics, as_json=json) for each in nodes)
        return _show(shown, once=is_once, on_screen=not json)
    if connection["tls"] is not None:
        raise ConfigError(
            "--tls, --ca-file, --cert-file: found no --producer or --relay, expected one of them"
        )
    from dcp.cli.displays.running_tasks import board_shown, looks_at_board

    boards = looks_at_board(settings)
    shown = (board_shown(each, metrics=metrics, as_json=json) for each in boards)
    return _show(shown, once=is_once, on_screen=not json)


def _show(looks: Iterator[str], *, once: bool, on_screen: bool) -> int:
    with suppress(KeyboardInterrupt):
        if once:
            say(next(looks).rstrip("\n"))
        elif on_screen:
            _show_on_screen(looks)
        else:
            for look in looks:
                say(look)
                sleep(_REFRESH_SECONDS)
    return 0


def _show_on_screen(looks: Iterator[str]) -> None:
    """Look again and again, on the terminal's second screen; the first is left as it was."""
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        for look in looks:
            live.update(Text(printable_lines(look), no_wrap=True), refresh=True)
            sleep(_REFRESH_SECONDS)
