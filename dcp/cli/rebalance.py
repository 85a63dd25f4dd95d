"""``dcplake rebalance``: let the nodes of a running ``dcplake serve`` own evenly many vbuckets."""

import argparse

from dcp.cli.numbers import node_number
from dcp.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dcp.cli.source_options import add_source_options

    add_source_options(parser)
    parser.add_argument(
        "--remove",
        type=node_number,
        metavar="NODE",
        help="a node that gives all away and goes; the first node is 1",
    )


def run(arguments: argparse.Namespace) -> int:
    """Order it, wait until it is done, and say who owns what."""
    from dcp.cli.source_options import password_from
    from dcp.producer.clients.admin_client import AdminClient

    password = password_from(arguments)
    with AdminClient(
        arguments.seeds.split(","), arguments.user, password, arguments.bucket
    ) as client:
        client.rebalance(arguments.remove)
        nodes = client.nodes()
    owned = ", ".join(f"node {node.number}: {node.vbuckets}" for node in nodes if node.member)
    say(f"vbuckets are even: {owned}")
    return 0
