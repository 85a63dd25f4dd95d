"""``dcplake verify``: compares the replica tables with the bucket, and tells by its exit code."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from dcp.cli.displays.seqno_progress import seqno_display
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.options.values import vbucket_ranges
from dcp.cli.terminal.output import say, say_json
from dcp.lake.verify.report import DEFAULT_KEYS

if TYPE_CHECKING:
    from dcp.lake.rounds.observer import RoundProgress

EPILOG: Final = """\
Streams the metadata (key, seqno, CAS; no values) of the WHOLE bucket, from the first change on, and
compares it with the newest version of each replica table. Vbuckets that differ are read once more,
keys that differ twice. What waits for a run or an apply is no difference. --vbuckets reads less.

exit codes: 0 equal; 10 some keys differ; 5 equal, but some vbuckets could not be compared"""


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    vbuckets: Annotated[
        frozenset[int] | None,
        Option(parser=vbucket_ranges, metavar="0-63,70", help="compare these only (all)"),
    ] = None,
    keys: Annotated[
        int,
        Option(min=0, metavar="N", help="list at most N differing keys; all are counted"),
    ] = DEFAULT_KEYS,
    json: Annotated[bool, Option("--json", help="the result as one JSON object")] = False,
) -> int:
    """Compare, print, and raise what the result is."""
    from dcp.lake.verify.compare import verify

    report = verify(
        settings_from(config, lake, overrides),
        vbuckets=vbuckets,
        keys=keys,
        show_pass=_bar,
    )
    if json:
        say_json(report.to_json())
    else:
        say(str(report))
    if (error := report.error()) is not None:
        raise error
    return 0


def _bar(
    pass_name: str, vbuckets: int, seqnos: int, progress: "RoundProgress | None"
) -> AbstractContextManager[object]:
    if not sys.stderr.isatty():
        return nullcontext()
    backlog = f"{vbuckets} vbuckets, {seqnos:,} seqnos"
    return seqno_display(pass_name, backlog, seqnos, progress)
