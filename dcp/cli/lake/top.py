"""``dcplake top``: connections, windows and stages of a running run, as they are now.

Reads the task board of the lake, or asks a producer or a relay; starts no Spark. Where the output
is no terminal it shows one look.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccount
from dcp.cli.terminal.output import say, say_json
from dcp.client.settings import ConnectionSettings
from dcp.errors import ConfigError
from dcp.printable import printable_lines

if TYPE_CHECKING:
    from dcp.cli.views.board_view import BoardView
    from dcp.cli.views.producer_view import ProducerView

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
    if address := producer or relay:
        from dcp.cli.views.producer_view import ProducerView

        node = ProducerView(
            address,
            account.username,
            account.password(),
            connection["tls"],
            allows_plain=settings.source.allow_plain,
            is_relay=bool(relay),
        )
        return _show(node, once=once, metrics=metrics, as_json=json)
    if connection["tls"] is not None:
        raise ConfigError(
            "--tls, --ca-file, --cert-file: found no --producer or --relay, expected one of them"
        )
    from dcp.cli.views.board_view import BoardView

    return _show(BoardView(settings), once=once, metrics=metrics, as_json=json)


def _show(view: "BoardView | ProducerView", *, once: bool, metrics: bool, as_json: bool) -> int:
    with suppress(KeyboardInterrupt):
        if metrics:
            view.refresh()
            say(view.metrics().rstrip("\n"))
        elif once or not sys.stdout.isatty():
            _look(view, as_json=as_json)
        elif as_json:
            while True:
                _look(view, as_json=True)
                sleep(_REFRESH_SECONDS)
        else:
            _show_on_screen(view)
    return 0


def _look(view: "BoardView | ProducerView", *, as_json: bool) -> None:
    view.refresh()
    if as_json:
        say_json(view.to_json())
    else:
        say(view.text())


def _show_on_screen(view: "BoardView | ProducerView") -> None:
    """Look again and again, on the terminal's second screen; the first is left as it was."""
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            view.refresh()
            live.update(Text(printable_lines(view.text()), no_wrap=True), refresh=True)
            sleep(_REFRESH_SECONDS)
