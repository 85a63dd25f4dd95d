"""``dcplake tail``: the newest changes of a lake, and those that follow."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.printable import printable
from dcp.records import plain

if TYPE_CHECKING:
    from dcp.lake.query.tail import Change

_POLL_SECONDS: Final = 1.0
_SHOWN_CHARACTERS: Final = 60


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    lines: Annotated[int, Option("-n", "--lines", min=0, help="changes to start with")] = 10,
    follow: Annotated[bool, Option("-f", "--follow", help="go on with every new round")] = False,
    json: Annotated[bool, Option("--json", help="one JSON object per change")] = False,
) -> int:
    """Print, and follow if asked to."""
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.query.tail import changes_since, newest_changes

    with opened_lake(settings_from(config, lake, overrides)) as tables:
        newest, found = newest_changes(tables, lines)
        _print(found, as_json=json)
        while follow:
            time.sleep(_POLL_SECONDS)
            newest, more = changes_since(tables, newest)
            _print(more, as_json=json)
    return 0


def _print(changes: Iterable["Change"], *, as_json: bool) -> None:
    for change in changes:
        text = change.value.decode("utf-8", "backslashreplace")
        if as_json:
            say_json({**plain(change), "value": text})
        else:
            shown = printable(text)
            if len(shown) > _SHOWN_CHARACTERS:
                shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
            say(
                f"round {change.round:<4} {change.kind:<10} vbucket {change.vbucket:<4} "
                f"seqno {change.seqno:<8} {printable(change.key)}  {shown}".rstrip()
            )
