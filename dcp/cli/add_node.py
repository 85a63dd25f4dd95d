"""``dcplake add-node``: start another node of a running ``dcplake serve``."""

import argparse

from dcp.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dcp.cli.source_options import add_source_options

    add_source_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Order it and say where the node listens."""
    from dcp.cli.source_options import password_from
    from dcp.producer.clients.admin_client import AdminClient

    password = password_from(arguments)
    with AdminClient(
        arguments.seeds.split(","), arguments.user, password, arguments.bucket
    ) as client:
        node = client.add_node()
    say(f"node {node.number} listens on {node.address}; it owns nothing until `dcplake rebalance`")
    return 0
