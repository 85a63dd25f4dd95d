"""``dcplake erase``: take documents out of the lake, with all their versions."""

from pathlib import Path
from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.terminal.output import say, say_json
from dcp.errors import ConfigError
from dcp.lake.config.contracts import DEFAULT_COLLECTION

EPILOG = "A running driver carries the request out. If none runs, the next `dcplake run` does."


def run(  # noqa: PLR0913  (an argument for each option)
    *,
    keys: Annotated[
        Path, Option("--keys", metavar="FILE", help="the documents' keys, one a line, in UTF-8")
    ],
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    collection: Annotated[
        str, Option(metavar="SCOPE.COLLECTION", help="the collection of the documents")
    ] = DEFAULT_COLLECTION,
    keep_out: Annotated[
        bool,
        Option(
            "--keep-out",
            help="also keep later values of these keys out of the lake",
        ),
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="show the rows and the price, and request nothing")
    ] = False,
    check: Annotated[
        bool, Option("--check", help="search all data files for the documents, and request nothing")
    ] = False,
    json: Annotated[bool, Option("--json", help="the result as one JSON object")] = False,
) -> int:
    """Print the price, and ask the driver of the lake; or search all files."""
    from dcp.lake.run.erase_command import ask_erasure, check_erased, erasure_from_file

    if check and dry_run:
        raise ConfigError("found --check and --dry-run, expected one of them")
    settings = settings_from(config, lake, overrides)
    erasure = erasure_from_file(keys, collection, keeps_out=keep_out)
    if check:
        found = check_erased(settings, erasure)
        if json:
            say_json(found.to_json())
        found.refuse_found()
        if not json:
            say(str(found))
        return 0
    documents, request = ask_erasure(settings, erasure, dry_run=dry_run)
    if json:
        say_json({**documents.to_json(), "id": None if request is None else request.id})
        return 0
    asked = "would erase" if request is None else f"erase {request.id}:"
    say(f"{asked} {documents}")
    for line in documents.price():
        say(f"  {line}")
    return 0
