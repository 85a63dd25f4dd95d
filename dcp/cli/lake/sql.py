"""``dcplake sql``: one question to the lake, answered as a table or as JSON lines.

Only statements that read are run, unless ``--write`` is given.

In JSON the columns of a row (and the fields of a struct) have names of their own: the second ``a``
is ``a_2``. `dcp.cli.terminal.output.json_text` says how values are written, in the table only
structs, arrays and maps.
"""

import re
import sys
from typing import TYPE_CHECKING, Annotated, Final

from typer import Argument, Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.cli.terminal.table import table

if TYPE_CHECKING:
    from dcp.lake.config.settings import Settings

EPILOG: Final = """\
\b
tables: docs (a replica table), changes (the change log), control (requests to the driver, if any)
views:  documents, documents_variant, docs_live, pending_changes, positions, rounds, rollbacks,
        epochs, row_history, stale_vbuckets, dropped_collections; with typed columns
        documents_typed, docs_NAME (view = "NAME" of a contract), quarantine
time travel: SELECT … FROM docs VERSION AS OF 3

\b
structs, arrays and maps are shown as JSON; times are in UTC, with their zone

\b
--json: repeated column names are numbered (a, a_2, …); decimals are exact numbers of any size;
NaN and infinities are null; bytes are text, or {"base64": …} where they are no UTF-8"""

WRITING: Final = (
    "--write: holds the lake's lock, where it has one. Rows of a replica table that this changes"
    " stop the next apply with code 7, rows of changes the next run; its message names the RESTORE"
    " that helps.\n"
    "A replica table restored to one of dcplake's applies goes on from there: the next run applies"
    " the later rounds again."
)
"""What is said before a statement that may write is run."""

_REQUEST: Final = re.compile(
    r"\s*INSERT\s+INTO\s+(TABLE\s+)?`?control`?[\s(](?!\s*REPLACE\b)", re.IGNORECASE
)
"""A request of the driver: a row more of ``control``, which takes no lock."""

_LIMIT_MAX: Final = 2**31 - 2
"""One row more is asked for, and Spark counts in 32 bits."""


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    question: Annotated[
        str, Argument(help="the SQL statement, or - to read it from standard input")
    ],
    write: Annotated[
        bool, Option("--write", help="run statements that change something, too")
    ] = False,
    json: Annotated[bool, Option("--json", help="one JSON object per row")] = False,
    limit: Annotated[int, Option(min=0, max=_LIMIT_MAX, help="rows to show at most")] = 100,
) -> int:
    """Ask and print."""
    settings = settings_from(config, lake, overrides)
    if question == "-":
        question = sys.stdin.read()
    _ask(settings, question, limit, as_json=json, may_write=write)
    return 0


def _ask(
    settings: "Settings", question: str, limit: int, *, as_json: bool, may_write: bool
) -> None:
    from dcp.lake.adapters.opening import opened_lake
    from dcp.lake.query.answers import answer, head, refuse_writing
    from dcp.lake.query.plain_names import show_for_queries

    # A request may be written while a driver holds the lock.
    takes_lock = may_write and not _REQUEST.match(question)
    writer = "dcplake sql --write" if takes_lock else ""
    with opened_lake(settings, writer=writer) as lake:
        if takes_lock:
            print(WRITING, file=sys.stderr)
        show_for_queries(lake)
        if not may_write:
            refuse_writing(lake.spark, question)
        found = answer(lake.spark, question)
        rows = head(found, limit + 1)
    shown = rows[:limit]
    if as_json:
        for row in shown:
            say_json(row)
    else:
        say(table(found.columns, [tuple(row) for row in shown]))
    if len(rows) > len(shown):
        print(f"only the first {len(shown)} rows are shown; see --limit", file=sys.stderr)
