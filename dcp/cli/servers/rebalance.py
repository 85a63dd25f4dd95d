"""``dcplake rebalance``: let the nodes of a running ``dcplake serve`` own evenly many vbuckets."""

from typing import Annotated

from typer import Option

from dcp.cli.options import source_options as source
from dcp.cli.terminal.output import say
from dcp.seeds import DEFAULT_BUCKET, DEFAULT_SEED


def run(
    *,
    seeds: source.Seeds = DEFAULT_SEED,
    bucket: source.Bucket = DEFAULT_BUCKET,
    user: source.User = source.DEFAULT_USER,
    password_env: source.PasswordEnv = source.PASSWORD_ENV,
    remove: Annotated[
        int | None,
        Option(
            min=1, metavar="NODE", help="a node that gives all away and goes; the first node is 1"
        ),
    ] = None,
) -> int:
    """Order it, wait until it is done, and say who owns what."""
    with source.admin_client(seeds, user, password_env, bucket) as client:
        client.rebalance(remove)
        nodes = client.nodes()
    owned = ", ".join(f"node {node.number}: {node.vbuckets}" for node in nodes if node.member)
    say(f"vbuckets are even: {owned}")
    return 0
