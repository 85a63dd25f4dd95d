"""``dcplake add-node``: start another node of a running ``dcplake serve``."""

from dcp.cli.options import source_options as source
from dcp.cli.terminal.output import say
from dcp.seeds import DEFAULT_BUCKET, DEFAULT_SEED


def run(
    *,
    seeds: source.Seeds = DEFAULT_SEED,
    bucket: source.Bucket = DEFAULT_BUCKET,
    user: source.User = source.DEFAULT_USER,
    password_env: source.PasswordEnv = source.PASSWORD_ENV,
) -> int:
    """Order it and say where the node listens."""
    with source.admin_client(seeds, user, password_env, bucket) as client:
        node = client.add_node()
    say(f"node {node.number} listens on {node.address}; it owns nothing until `dcplake rebalance`")
    return 0
