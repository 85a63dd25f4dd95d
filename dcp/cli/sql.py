"""``dcplake sql``: one question to the lake, answered as a table or as JSON lines.

In JSON the columns of a row (and the fields of a struct) have names of their own: the second ``a``
is ``a_2``. `dcp.cli.output.json_text` says how values are written.
"""

import argparse
import sys
from typing import Final

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json, table, unique_names

TABLES = """\
tables: docs (the replica), changes (the log)
views:  documents, documents_variant, docs_live, pending_changes, positions, rounds, rollbacks,
        epochs, row_history, stale_vbuckets
time travel: SELECT … FROM docs VERSION AS OF 3

--json: repeated column names are numbered (a, a_2, …); decimals are exact numbers of any size;
NaN and infinities are null; bytes are text, or {"base64": …} where they are no UTF-8"""

_LIMIT_MAX: Final = 2**31 - 2
"""One row more is asked for, and Spark counts in 32 bits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = TABLES
    add_settings_options(parser)
    parser.add_argument("question", help="the SQL statement, or - to read it from standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--limit", type=_row_count, default=100, help="rows to show at most (100)")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    from dcp.lake.query import answer, first_rows, open_for_queries

    question = sys.stdin.read() if arguments.question == "-" else arguments.question
    lake = open_for_queries(settings_from(arguments))
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
