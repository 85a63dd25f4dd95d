"""``dcplake verify``: compares the replica tables with the bucket, and tells by its exit code."""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from dcp.cli.numbers import vbucket_ranges, whole_number
from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json
from dcp.cli.seqno_bar import SeqnoBar
from dcp.lake.verify.verify_report import DEFAULT_KEYS
from dcp.lake.verify.verify_source import VerifyObserver

if TYPE_CHECKING:
    from dcp.lake.log.progress import RoundProgress

ABOUT: Final = """\
Streams the metadata (key, seqno, CAS; no values) of the WHOLE bucket, from the first change on, and
compares it with the newest version of each replica table. Vbuckets that differ are read once more,
keys that differ twice. What waits for a run or an apply is no difference. --vbuckets reads less.

exit codes: 0 equal; 10 some keys differ; 5 equal, but some vbuckets could not be compared"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = ABOUT
    add_settings_options(parser)
    parser.add_argument(
        "--vbuckets", type=vbucket_ranges, metavar="0-63,70", help="compare these only (all)"
    )
    parser.add_argument(
        "--keys",
        type=whole_number,
        default=DEFAULT_KEYS,
        metavar="N",
        help=f"list so many keys that differ at most ({DEFAULT_KEYS}); all are counted",
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print, and raise what the result is."""
    from dcp.lake.verify.verify import verify

    report = verify(
        settings_from(arguments),
        vbuckets=arguments.vbuckets,
        keys=arguments.keys,
        observer=BarOfLooks() if sys.stderr.isatty() else None,
    )
    if arguments.json:
        say_json(report.to_json())
    else:
        say(str(report))
    if (error := report.error()) is not None:
        raise error
    return 0


class BarOfLooks(VerifyObserver):
    """Shows a bar while the source is read."""

    def __init__(self) -> None:
        self._bar = SeqnoBar()

    def reading(
        self, look: str, vbuckets: int, seqnos: int, progress: "RoundProgress | None"
    ) -> None:
        """Show the bar."""
        self._bar.show(look, f"{vbuckets} vbuckets, {seqnos:,} seqnos", seqnos, progress)

    def ended(self) -> None:
        """Take it away."""
        self._bar.take_away()
