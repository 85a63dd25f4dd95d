"""``dcplake sql``: one question to the lake, answered as a table or as JSON lines.

Only statements that read are run, unless ``--write`` is given.

In JSON the columns of a row (and the fields of a struct) have names of their own: the second ``a``
is ``a_2``. `dcp.cli.output.json_text` says how values are written.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json, table, unique_names

if TYPE_CHECKING:
    from dcp.lake.config.settings import Settings

TABLES = """\
tables: docs (the replica), changes (the log)
views:  documents, documents_variant, docs_live, pending_changes, positions, rounds, rollbacks,
        epochs, row_history, stale_vbuckets
time travel: SELECT … FROM docs VERSION AS OF 3

--json: repeated column names are numbered (a, a_2, …); decimals are exact numbers of any size;
NaN and infinities are null; bytes are text, or {"base64": …} where they are no UTF-8"""

WRITING: Final = (
    "--write: holds the lake's lock, where it has one. Rows of a replica that this changes stop the"
    " next apply with code 7, rows of changes the next run; its message names the RESTORE that"
    " helps.\n"
    "A replica restored to one of dcplake's applies goes on from there: the next run applies the"
    " later rounds again."
)
"""What is said before a statement that may write is run."""

_LIMIT_MAX: Final = 2**31 - 2
"""One row more is asked for, and Spark counts in 32 bits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = TABLES
    add_settings_options(parser)
    parser.add_argument("question", help="the SQL statement, or - to read it from standard input")
    parser.add_argument(
        "--write", action="store_true", help="run statements that change something, too"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--limit", type=_row_count, default=100, help="rows to show at most (100)")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    from dcp.lake.tables.opening import lake_locked

    settings = settings_from(arguments)
    question = sys.stdin.read() if arguments.question == "-" else arguments.question
    if not arguments.write:
        return _ask(arguments, settings, question)
    with lake_locked(settings, "dcplake sql --write"):
        print(WRITING, file=sys.stderr)
        return _ask(arguments, settings, question)


def _ask(arguments: argparse.Namespace, settings: "Settings", question: str) -> int:
    from dcp.lake.query.query import answer, first_rows, open_for_queries
    from dcp.lake.query.read_only import refuse_writing

    lake = open_for_queries(settings)
    if not arguments.write:
        refuse_writing(lake.spark, question)
    found = answer(lake.spark, question)
    rows = first_rows(found, arguments.limit + 1)
    shown = rows[: arguments.limit]
    if arguments.json:
        for row in shown:
            say_json(dict(zip(unique_names(found.columns), map(_plain, row), strict=True)))
    else:
        say(table(found.columns, [tuple(row) for row in shown]))
    if len(rows) > len(shown):
        print(f"only the first {len(shown)} rows are shown; see --limit", file=sys.stderr)
    return 0


def _row_count(text: str) -> int:
    count = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if not 0 <= count <= _LIMIT_MAX:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected 0 to {_LIMIT_MAX}")
    return count


def _plain(value: object) -> object:
    """Return the value with structs as dictionaries, at any depth."""
    if isinstance(value, tuple) and hasattr(value, "__fields__"):
        return dict(zip(unique_names(value.__fields__), map(_plain, value), strict=True))
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return value
