"""``dcplake add-node``: start another node of a running ``dcplake serve``."""

from dcp.cli.options.setting_options import takes_settings
from dcp.cli.options.source_options import ProducerAccess
from dcp.cli.terminal.output import say


@takes_settings
def run(
    *,
    access: ProducerAccess,
) -> int:
    """Order it and say where the node listens."""
    with access.admin_client() as client:
        node = client.add_node()
    say(f"node {node.number} listens on {node.address}; it owns nothing until `dcplake rebalance`")
    return 0
