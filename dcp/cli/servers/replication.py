"""``dcplake replication``: let the copies of a running ``dcplake serve`` stand still, or follow."""

from typing import Annotated, Literal

from typer import Argument

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccess
from dcp.cli.terminal.output import say


@takes_settings
def run(
    *,
    access: ProducerAccess,
    order: Annotated[
        Literal["pause", "resume"],
        Argument(
            metavar="pause|resume",
            help="pause: a failover loses what is written from now on; resume: copies follow again",
        ),
    ],
) -> int:
    """Order it."""
    with access.admin_client() as client:
        if order == "pause":
            client.pause_replication()
            say("copies stand still: a failover loses what is written from now on")
        else:
            client.resume_replication()
            say("copies follow again")
    return 0
