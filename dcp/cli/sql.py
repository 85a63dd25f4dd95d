"""``dcplake sql``: one question to the lake, answered as a table or as JSON lines."""

import argparse
import sys
from base64 import b64encode
from typing import Any

from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json, table

TABLES = """\
tables: docs (the replica), changes (the log)
views:  documents, documents_variant, docs_live, pending_changes, positions, rounds
time travel: SELECT … FROM docs VERSION AS OF 3"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = TABLES
    add_settings_options(parser)
    parser.add_argument("question", help="the SQL statement, or - to read it from standard input")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--limit", type=int, default=100, help="rows to show at most (100)")


def run(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    from dcp.lake.query import answer, open_for_queries

    question = sys.stdin.read() if arguments.question == "-" else arguments.question
    lake = open_for_queries(settings_from(arguments))
    found = answer(lake.spark, question)
    rows = found.limit(arguments.limit + 1).collect()
    shown = rows[: arguments.limit]
    if arguments.json:
        for row in shown:
            say_json({name: _plain(value) for name, value in row.asDict(recursive=True).items()})
    else:
        say(table(found.columns, [tuple(row) for row in shown]))
    if len(rows) > len(shown):
        print(f"only the first {len(shown)} rows are shown; see --limit", file=sys.stderr)
    return 0


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: exact integers, bytes as text or base64."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(bytes(value)).decode()}
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if hasattr(value, "as_integer_ratio") and not isinstance(value, float):
        return int(value) if value == int(value) else str(value)
    return value
