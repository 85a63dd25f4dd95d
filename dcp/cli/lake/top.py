"""``dcplake top``: connections, windows and stages of a running run, live.

Reads the live board of the lake, or asks a producer or a relay; starts no Spark. Where the output
is no terminal it shows one look.
"""

import sys
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from dcp.cli.options import source_options as source
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.errors import ConfigError
from dcp.printable import printable_lines

if TYPE_CHECKING:
    from dcp.cli.views.board_view import BoardView
    from dcp.cli.views.producer_view import ProducerView

_REFRESH_SECONDS: Final = 1.0


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
    user: source.User = source.DEFAULT_USER,
    password_env: source.PasswordEnv = source.PASSWORD_ENV,
    tls: source.Tls = False,
    ca_file: source.CaFile = None,
    once: Annotated[bool, Option("--once", help="one look, also on a terminal")] = False,
    json: Annotated[bool, Option("--json", help="one JSON object for each look")] = False,
) -> int:
    """Show until ctrl-c, or once."""
    if producer and relay:
        raise ConfigError("--producer, --relay: found both, expected one of them")
    encryption = source.tls_from(is_wanted=tls, ca_file=ca_file)
    settings = settings_from(config, lake, overrides)
    if address := producer or relay:
        from dcp.cli.views.producer_view import ProducerView

        node = ProducerView(
            address,
            user,
            source.password_from(password_env),
            encryption,
            allows_plain=settings.source.allow_plain,
            is_relay=bool(relay),
        )
        return _show(node, once=once, metrics=metrics, as_json=json)
    if encryption is not None:
        raise ConfigError("--tls, --ca-file: found no --producer or --relay, expected one of them")
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
            _show_live(view)
    return 0


def _look(view: "BoardView | ProducerView", *, as_json: bool) -> None:
    view.refresh()
    if as_json:
        say_json(view.to_json())
    else:
        say(view.text())


def _show_live(view: "BoardView | ProducerView") -> None:
    """Look again and again, on the terminal's second screen; the first is left as it was."""
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            view.refresh()
            live.update(Text(printable_lines(view.text()), no_wrap=True), refresh=True)
            sleep(_REFRESH_SECONDS)
