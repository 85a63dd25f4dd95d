"""``dcplake replication``: stop the replicas of a running ``dcplake serve``, or let them follow."""

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
            help="pause: a failover loses later writes; resume: replicas follow again",
        ),
    ],
) -> int:
    """Order it."""
    with access.admin_client() as client:
        if order == "pause":
            client.pause_replication()
            say("replicas stand still: a failover loses what is written from now on")
        else:
            client.resume_replication()
            say("replicas follow again")
    return 0
