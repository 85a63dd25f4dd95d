"""``dcplake tail``: the newest changes of a lake, and those that follow."""

import argparse
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from dcp.cli.numbers import whole_number
from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json
from dcp.printable import printable

if TYPE_CHECKING:
    from dcp.lake.query.tail import Change

_POLL_SECONDS: Final = 1.0
_SHOWN_CHARACTERS: Final = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings_options(parser)
    parser.add_argument(
        "-n", "--lines", type=whole_number, default=10, help="changes to start with (10)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on with every new round")
    parser.add_argument("--json", action="store_true", help="one JSON object per change")


def run(arguments: argparse.Namespace) -> int:
    """Print, and follow if asked to."""
    from dcp.lake.query.tail import changes_since, newest_changes
    from dcp.lake.tables.opening import lake_location, spark_of
    from dcp.lake.tables.tables import open_lake

    settings = settings_from(arguments)
    lake = open_lake(spark_of(settings), lake_location(settings))
    newest, found = newest_changes(lake, arguments.lines)
    _print(found, as_json=arguments.json)
    while arguments.follow:
        time.sleep(_POLL_SECONDS)
        newest, more = changes_since(lake, newest)
        _print(more, as_json=arguments.json)
    return 0


def _print(changes: Iterable["Change"], *, as_json: bool) -> None:
    for change in changes:
        text = change.value.decode("utf-8", "backslashreplace")
        if as_json:
            say_json({**asdict(change), "value": text})
        else:
            shown = printable(text)
            if len(shown) > _SHOWN_CHARACTERS:
                shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
            say(
                f"round {change.round:<4} {change.kind:<10} vbucket {change.vbucket:<4} "
                f"seqno {change.seqno:<8} {printable(change.key)}  {shown}".rstrip()
            )
