"""``dcplake top``: connections, windows and stages of a run that is going on, live.

Reads the live board of the lake, or asks a producer or relay; starts no Spark. Where the output is
no terminal it shows one look.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import sleep, time
from typing import TYPE_CHECKING, Any, Final

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json
from dcp.errors import ConfigError, LakeError, SourceError

if TYPE_CHECKING:
    from dcp.lake.config.settings import Settings
    from dcp.lake.monitor.live_look import TaskLook

_REFRESH_SECONDS: Final = 1.0
_BEGIN: Final = "\x1b[?1049h\x1b[?25l"
_HOME_AND_CLEAR: Final = "\x1b[H\x1b[2J"
_END: Final = "\x1b[?25h\x1b[?1049l"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dcp.cli.source_options import add_account_options, add_tls_options

    add_settings_options(parser)
    other = parser.add_mutually_exclusive_group()
    for name in ("--producer", "--relay"):
        other.add_argument(
            name, metavar="HOST:PORT", help=f"DCP connections of a {name[2:]} instead, by STAT"
        )
    parser.add_argument(
        "--metrics", action="store_true", help="print once, as Prometheus reads it (text format)"
    )
    add_account_options(parser)
    add_tls_options(parser, "the producer or relay")
    parser.add_argument("--once", action="store_true", help="one look, also on a terminal")
    parser.add_argument("--json", action="store_true", help="one JSON object for each look")


def run(arguments: argparse.Namespace) -> int:
    """Show until ctrl-c, or once."""
    try:
        if arguments.producer or arguments.relay:
            return _show_producer(arguments)
        _require_plain(arguments)
        return _show_board(arguments)
    except KeyboardInterrupt:
        return 0


def _require_plain(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where a connection is to be encrypted and there is none."""
    if arguments.tls or arguments.ca_file is not None:
        raise ConfigError("--tls, --ca-file: found no --producer or --relay, expected one of them")


def _show_board(arguments: argparse.Namespace) -> int:
    from dcp.cli.live_view import board_text
    from dcp.lake.monitor.live_board import read_board
    from dcp.lake.monitor.live_metrics import exposition
    from dcp.lake.monitor.live_place import LivePlace

    settings = settings_from(arguments)
    place = LivePlace.of(settings)

    def looks_of_tasks() -> "list[TaskLook]":
        looks = read_board(place)
        if not looks:
            _require_lake(settings)
        return looks

    if arguments.metrics:
        say(exposition(looks_of_tasks()).rstrip("\n"))
        return 0

    def look() -> tuple[str, dict[str, Any]]:
        looks = looks_of_tasks()
        text = board_text(looks) if looks else "no task is running"
        return text, {"at": time(), "tasks": [each.to_json() for each in looks]}

    return _show(look, arguments)


def _require_lake(settings: "Settings") -> None:
    """Raise LakeError where there is no lake, as far as this machine can tell."""
    from dcp.lake.config.lake_root import local_root

    root = None if settings.lake.schema else local_root(settings.lake.root)
    if root is not None and not (root / "changes").exists():
        raise LakeError(
            f"{root}: found no lake there, expected one (lake.root, --lake); a first `dcplake run` "
            "makes it"
        )


def _show_producer(arguments: argparse.Namespace) -> int:
    from dcp.cli.producer_view import ProducerView
    from dcp.cli.source_options import password_from, tls_from

    view = ProducerView(
        arguments.producer or arguments.relay,
        arguments.user,
        password_from(arguments),
        arguments.bucket,
        tls_from(arguments),
        allows_plain=settings_from(arguments).source.allow_plain,
    )

    def look_at() -> None:
        view.look()
        if arguments.relay and not view.relay:
            raise SourceError(
                f"{view.address}: found a producer (it has no statistics of a relay), expected a "
                "relay; --producer shows it"
            )

    if arguments.metrics:
        with closing(view):
            look_at()
            say(view.metrics().rstrip("\n"))
        return 0

    def look() -> tuple[str, dict[str, Any]]:
        look_at()
        return view.text(), {"at": time(), **view.to_json()}

    try:
        return _show(look, arguments)
    finally:
        view.close()


def _show(look: Callable[[], tuple[str, dict[str, Any]]], arguments: argparse.Namespace) -> int:
    if arguments.once or not sys.stdout.isatty():
        _print(*look(), as_json=arguments.json)
        return 0
    with _screen(is_used=not arguments.json):
        while True:
            text, told = look()
            _print(text, told, as_json=arguments.json, clear=True)
            sleep(_REFRESH_SECONDS)


def _print(text: str, told: dict[str, Any], *, as_json: bool, clear: bool = False) -> None:
    if as_json:
        say_json(told)
    else:
        if clear:
            sys.stdout.write(_HOME_AND_CLEAR)
        say(text)


@contextmanager
def _screen(*, is_used: bool) -> Iterator[None]:
    """Use the terminal's second screen, and leave the first as it was."""
    if not is_used:
        yield
        return
    sys.stdout.write(_BEGIN)
    try:
        yield
    finally:
        sys.stdout.write(_END)
        sys.stdout.flush()
