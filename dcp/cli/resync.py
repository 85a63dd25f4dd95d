"""``dcplake resync``: let vbuckets be streamed again from their beginning."""

import argparse

from dcp.cli.numbers import vbucket_ranges
from dcp.cli.options import add_settings_options, settings_from
from dcp.cli.output import say, say_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_settings_options(parser)
    parser.add_argument(
        "--vbuckets",
        type=vbucket_ranges,
        metavar="0-63,70",
        help="which (all); only all of them mend a log or a table that somebody changed",
    )
    parser.add_argument("--json", action="store_true", help="what was done as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Commit the round that begins them anew."""
    from dcp.lake.run.resync import resync
    from dcp.printable import number_ranges

    done = resync(settings_from(arguments), arguments.vbuckets)
    if arguments.json:
        say_json(done.to_json())
    else:
        say(
            f"round {done.round}: vbuckets {number_ranges(done.vbuckets)} begin anew; the next run "
            "streams them whole, and until then their old rows stay"
        )
    return 0
