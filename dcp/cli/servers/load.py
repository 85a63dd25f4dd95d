"""``dcplake load``: store JSON lines in a bucket, over real key-value connections."""

from pathlib import Path
from time import monotonic
from typing import Annotated

from typer import Argument, Option

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccess
from dcp.cli.terminal.output import say
from dcp.cli.terminal.progress import display, rate


@takes_settings
def run(
    *,
    access: ProducerAccess,
    file: Annotated[Path, Argument(metavar="FILE.jsonl", help="one JSON object per line")],
    key_field: Annotated[
        str | None, Option(metavar="NAME", help="the field whose value is the key")
    ] = None,
    key_template: Annotated[
        str | None,
        Option(metavar="TEXT", help="the key, with fields in braces: airport_{icao}"),
    ] = None,
    collection: Annotated[
        str,
        Option(
            metavar="SCOPE.NAME",
            help="the collection that the documents go to, instead of the default collection",
        ),
    ] = "",
) -> int:
    """Load and say how much."""
    from dcp.client.kv.loader import KeyRule, LoadError, load_jsonl

    if not file.is_file():
        what = "no such file"
        if file.exists():
            what = "a folder" if file.is_dir() else "a pipe or a device"
        raise LoadError(f"{file}: found {what}, expected a file of JSON lines")
    stored = read_bytes = 0
    begun = monotonic()

    def note(documents: int, up_to_bytes: int, _size: int) -> None:
        nonlocal stored, read_bytes
        stored, read_bytes = documents, up_to_bytes

    def told() -> str:
        return f"{stored:,} documents, {rate(stored, monotonic() - begun)}"

    size_bytes = file.stat().st_size
    with display(f"loading {file}", size_bytes, "bytes", lambda: (read_bytes, told())):
        stored = load_jsonl(
            access.seeds,
            file,
            user=access.username,
            password=access.password(),
            bucket=access.bucket,
            rule=KeyRule(key_field, key_template, collection),
            progress=note,
        )
    pace = rate(stored, monotonic() - begun)
    say(f"{stored:,} documents stored in bucket {access.bucket!r}, {pace}")
    return 0
