"""Asks a data node, and reads the numbers of its answers to STAT."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from dcp.client.settings import ConnectionSettings
from dcp.producer.kv_connection import KvConnection
from dcp.protocol.credentials import Credentials
from dcp.seeds import parse_seed


@contextmanager
def signed_in(
    node: str,
    settings: ConnectionSettings,
    credentials: Credentials,
    timeout_seconds: float,
    *,
    selects_bucket: bool = True,
) -> Iterator[KvConnection]:
    """Give a KV connection with a node, signed in to the bucket as a lake's settings say.

    Raises:
        NodeUnavailableError: the node cannot be reached, or does not answer in time.
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
    """
    context = None if settings.tls is None else settings.tls.client_context()
    bucket = settings.bucket if selects_bucket else None
    with closing(KvConnection(*parse_seed(node), timeout_seconds, context)) as connection:
        if credentials.by_certificate:
            connection.begin_by_certificate(bucket)
        else:
            connection.log_in(
                credentials.username,
                credentials.password.reveal(),
                bucket,
                mechanisms=credentials.mechanisms,
            )
        yield connection


def stat_number(told: Mapping[str, str], name: str) -> int | None:
    """Return a number; None where it is not told, or is none."""
    text = told.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
