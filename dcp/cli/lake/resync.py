"""``dcplake resync``: stream vbuckets again from their beginning."""

from typing import Annotated

from typer import Option

from dcp.cli.lake.pause import ask_and_say
from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.options.values import vbucket_ranges
from dcp.printable import number_ranges


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
            help="vbuckets to read again; without it the whole bucket is read again; leave it out "
            "to repair a damaged change log or table",
        ),
    ] = None,
    json: Annotated[bool, Option("--json", help="the request as one JSON object")] = False,
) -> int:
    """Ask the driver of the lake, which need not run now."""
    from dcp.lake.change_log.control import RequestAction

    chosen = "all vbuckets" if vbuckets is None else f"vbuckets {number_ranges(vbuckets)}"
    effect = (
        f"{chosen} begin anew with the next round, of the run that goes on or of the next one; "
        "until they are streamed whole their old rows stay"
    )
    settings = settings_from(config, lake, overrides)
    return ask_and_say(settings, RequestAction.RESYNC, effect, vbuckets, json=json)
