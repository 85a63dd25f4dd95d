"""``dcplake failover``: let a node of a running ``dcplake serve`` be gone, its replicas go on."""

import argparse

from dcp.cli.numbers import node_number
from dcp.cli.output import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from dcp.cli.source_options import add_source_options

    add_source_options(parser)
    parser.add_argument(
        "node", type=node_number, metavar="NODE", help="its number; the first node is 1"
    )


def run(arguments: argparse.Namespace) -> int:
    """Order it and say what became of the vbuckets."""
    from dcp.cli.source_options import password_from
    from dcp.producer.clients.admin_client import AdminClient

    password = password_from(arguments)
    with AdminClient(
        arguments.seeds.split(","), arguments.user, password, arguments.bucket
    ) as client:
        before = {node.number: node.vbuckets for node in client.nodes()}
        client.failover(arguments.node)
    say(
        f"node {arguments.node} is out of the cluster; its {before[arguments.node]} vbuckets go on "
        "from their replicas, each on a new branch"
    )
    return 0
