"""``dcplake replication``: stop the replicas of a running ``dcplake serve``, or let them follow."""

from typing import Annotated, Literal

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
    order: Annotated[
        Literal["pause", "resume"],
        Argument(
            metavar="pause|resume",
            help="pause: a failover loses later writes; resume: replicas follow again",
        ),
    ],
) -> int:
    """Order it."""
    with source.admin_client(seeds, user, password_env, bucket) as client:
        if order == "pause":
            client.pause_replication()
            say("replicas stand still: a failover loses what is written from now on")
        else:
            client.resume_replication()
            say("replicas follow again")
    return 0
