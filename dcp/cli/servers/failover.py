"""``dcplake failover``: let a node of a running ``dcplake serve`` be gone, its replicas go on."""

from typing import Annotated

from typer import Argument

from dcp.cli.options import source_options as source
from dcp.cli.terminal.output import say
from dcp.seeds import DEFAULT_BUCKET, DEFAULT_SEED


def run(
    *,
    seeds: source.Seeds = DEFAULT_SEED,
    bucket: source.Bucket = DEFAULT_BUCKET,
    user: source.User = source.DEFAULT_USER,
    password_env: source.PasswordEnv = source.PASSWORD_ENV,
    node: Annotated[int, Argument(metavar="NODE", min=1, help="its number; the first node is 1")],
) -> int:
    """Order it and say what became of the vbuckets."""
    with source.admin_client(seeds, user, password_env, bucket) as client:
        before = {each.number: each.vbuckets for each in client.nodes()}
        client.failover(node)
    say(
        f"node {node} is out of the cluster; its {before[node]} vbuckets go on "
        "from their replicas, each on a new branch"
    )
    return 0
