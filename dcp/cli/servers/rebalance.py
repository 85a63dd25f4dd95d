"""``dcplake rebalance``: let the nodes of a running ``dcplake serve`` own evenly many vbuckets."""

from typing import Annotated

from typer import Option

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccess
from dcp.cli.terminal.output import say


@takes_settings
def run(
    *,
    access: ProducerAccess,
    remove: Annotated[
        int | None,
        Option(
            min=1, metavar="NODE", help="a node that gives all away and goes; the first node is 1"
        ),
    ] = None,
) -> int:
    """Order it, wait until it is done, and say who owns what."""
    with access.admin_client() as client:
        client.rebalance(remove)
        nodes = client.nodes()
    owned = ", ".join(f"node {node.number}: {node.vbuckets}" for node in nodes if node.member)
    say(f"vbuckets are even: {owned}")
    return 0
