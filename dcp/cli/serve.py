"""``dcplake serve``: the embedded producer as a process of its own."""

import argparse

from dcp.cli.source_options import add_account_options, password_from
from dcp.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--nodes", type=int, default=1, help="data nodes (1)")
    parser.add_argument("--vbuckets", type=int, default=64, help="vbuckets of the bucket (64)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port",
        type=int,
        default=11210,
        help="the first node's port, the others follow (11210); 0 takes free ones",
    )
    parser.add_argument(
        "--replica-lag",
        type=int,
        default=0,
        metavar="SEQNOS",
        help="how many of a vbucket's newest seqnos its replica lacks: lost by a failover (0)",
    )
    parser.add_argument(
        "--rules",
        choices=("document", "server"),
        default="document",
        help="whose rollback rules: the published document's or kv_engine's code's (document)",
    )
    add_account_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from dcp.producer.serve import serve
    from dcp.producer.settings import ClusterSettings

    if arguments.nodes < 1:
        raise ConfigError(f"--nodes: found {arguments.nodes}, expected at least 1")
    first = arguments.port
    settings = ClusterSettings(
        nodes=arguments.nodes,
        vbuckets=arguments.vbuckets,
        bucket=arguments.bucket,
        users={arguments.user: password_from(arguments)},
        host=arguments.host,
        ports=tuple(first + node if first else 0 for node in range(arguments.nodes)),
        replica_lag_seqnos=arguments.replica_lag,
        rules=arguments.rules,
    )
    serve(settings)
    return 0
