"""``dcplake seek``: let vbuckets go back to a seqno, and be read from there on."""

from typing import Annotated

from typer import Option

from dcp.cli.options.lake_options import Config, Lake, Overrides, settings_from
from dcp.cli.options.values import vbucket_ranges
from dcp.cli.terminal.output import say, say_json
from dcp.types import U64_MAX

EPILOG = (
    "What was received above the complete snapshot's end that they go back to is received again, "
    "and replaced in the tables as after a rollback. Seqnos are a vbucket's own: `dcplake sql` has "
    "them in the view `positions`."
)


def run(
    *,
    config: Config = None,
    lake: Lake = None,
    overrides: Overrides = None,
    vbuckets: Annotated[
        frozenset[int], Option(parser=vbucket_ranges, metavar="0-63,70", help="which")
    ],
    seqno: Annotated[
        int, Option(min=1, max=U64_MAX, metavar="N", help="go back to here, or a little lower")
    ],
    json: Annotated[bool, Option("--json", help="what was done as one JSON object")] = False,
) -> int:
    """Commit the round that begins their new epochs."""
    from dcp.lake.run.resync import seek

    done = seek(settings_from(config, lake, overrides), vbuckets, seqno)
    if json:
        say_json(done.to_json())
    else:
        say(f"round {done.round}, the next run reads again{done.forks_text}")
    return 0
