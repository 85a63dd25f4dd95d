"""``dcplake cut``: finds versions of all tables that hold one round, and prints views of them.

What it prints is SQL, to be pasted or to be given to ``spark-sql -f``.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

from typer import BadParameter, Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.errors import ConfigError

EPILOG: Final = """\
At a cut every vbucket of all tables stands at the same complete seqno, that of one round. Without
--round and --as-of it is the newest one. docs/howto/cookbook.md joins collections at a cut."""


def _moment(value: str | datetime) -> datetime:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        raise BadParameter(
            f"found {str(value)!r}, expected a time as in 2026-11-25T14:00:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    round_number: Annotated[
        int | None, Option("--round", min=1, help="the cut at this round, or an error")
    ] = None,
    as_of: Annotated[
        datetime | None,
        Option(
            parser=_moment,
            metavar="TIME",
            help="the newest cut at this time (ISO 8601; UTC without a zone)",
        ),
    ] = None,
    json: Annotated[bool, Option("--json", help="the cut as one JSON object")] = False,
) -> int:
    """Find and print."""
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.query.cuts import find_cut

    if round_number is not None and as_of is not None:
        raise ConfigError("found --round and --as-of, expected one of them")
    settings = settings_from(config, lake, overrides)
    with opened_lake(settings) as tables, tables.read_once():
        cut = find_cut(tables, round_number, as_of)
        views = cut.views_sql(tables)
    if json:
        say_json(cut.to_json() | {"views": views})
        return 0
    say(f"-- {cut}")
    for statement in views:
        say(f"{statement};")
    return 0
