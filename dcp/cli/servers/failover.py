"""``dcplake failover``: let a node of a running ``dcplake serve`` be gone, its replicas go on."""

from typing import Annotated

from typer import Argument

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccess
from dcp.cli.terminal.output import say


@takes_settings
def run(
    *,
    access: ProducerAccess,
    node: Annotated[int, Argument(metavar="NODE", min=1, help="its number; the first node is 1")],
) -> int:
    """Order it and say what became of the vbuckets."""
    with access.admin_client() as client:
        before = {each.number: each.vbuckets for each in client.nodes()}
        client.failover(node)
    say(
        f"node {node} is out of the cluster; its {before[node]} vbuckets go on "
        "from their replicas, each on a new branch"
    )
    return 0
