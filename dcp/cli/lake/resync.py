"""``dcplake resync``: let vbuckets be streamed again from their beginning."""

from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.options.values import vbucket_ranges
from dcp.cli.terminal.output import say, say_json


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    vbuckets: Annotated[
        frozenset[int] | None,
        Option(
            parser=vbucket_ranges,
            metavar="0-63,70",
            help="which (all); only all of them mend a log or a table that somebody changed",
        ),
    ] = None,
    json: Annotated[bool, Option("--json", help="what was done as one JSON object")] = False,
) -> int:
    """Commit the round that begins them anew."""
    from dcp.lake.run.resync import resync
    from dcp.printable import number_ranges

    done = resync(settings_from(config, lake, overrides), vbuckets)
    if json:
        say_json(done.to_json())
    else:
        say(
            f"round {done.round}: vbuckets {number_ranges(done.vbuckets)} begin anew; the next run "
            "streams them whole, and until then their old rows stay"
        )
    return 0
