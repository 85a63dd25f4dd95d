"""``dcplake load``: store JSON lines in a bucket, over real key-value connections."""

import argparse
from pathlib import Path
from time import monotonic

from dcp.cli.output import progress, rate, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dcp.cli.source_options import add_source_options

    add_source_options(parser)
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="one JSON object per line")
    key = parser.add_mutually_exclusive_group()
    key.add_argument("--key-field", metavar="NAME", help="the field whose value is the key")
    key.add_argument(
        "--key-template", metavar="TEXT", help="the key, with fields in braces: airport_{icao}"
    )
    parser.add_argument(
        "--collection",
        default="",
        metavar="SCOPE.NAME",
        help="the collection that the documents go to (default: the default collection)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Load and say how much."""
    from dcp.cli.source_options import password_from
    from dcp.producer.clients.loader import KeyRule, LoadError, load_jsonl

    if not arguments.file.is_file():
        what = "no such file"
        if arguments.file.exists():
            what = "a folder" if arguments.file.is_dir() else "a pipe or a device"
        raise LoadError(f"{arguments.file}: found {what}, expected a file of JSON lines")
    rule = KeyRule(arguments.key_field, arguments.key_template, arguments.collection)
    read_before = 0
    begun = monotonic()
    with progress(f"loading {arguments.file}", arguments.file.stat().st_size, "bytes") as advance:

        def show(_documents: int, read_bytes: int, _size: int) -> None:
            nonlocal read_before
            advance(read_bytes - read_before)
            read_before = read_bytes

        documents = load_jsonl(
            arguments.seeds.split(","),
            arguments.file,
            user=arguments.user,
            password=password_from(arguments),
            bucket=arguments.bucket,
            rule=rule,
            progress=show,
        )
    told = rate(documents, monotonic() - begun)
    say(f"{documents:,} documents stored in bucket {arguments.bucket!r}, {told}")
    return 0
