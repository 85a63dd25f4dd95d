"""Reads a node's answers to STAT for the views: groups that only ours have, and numbers."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from dcp.cli.terminal.quantities import memory_text
from dcp.client.settings import ConnectionSettings
from dcp.errors import NodeUnavailableError, SourceError
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
    context = None if settings.tls is None else settings.tls.context()
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


def group_of_ours(connection: KvConnection, group: str) -> dict[str, str]:
    """Return a group that only our relays, or producers, have; empty where it is refused.

    Raises:
        NodeUnavailableError: the node is lost.
    """
    try:
        return connection.statistics(group)
    except NodeUnavailableError:
        raise
    except SourceError:
        return {}


def stat_number(told: Mapping[str, str], name: str) -> int | None:
    """Return a number; None where it is not told, or is none."""
    text = told.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def stat_count(told: Mapping[str, str], name: str) -> int:
    """Return a number; 0 where it is not told, or is none."""
    return stat_number(told, name) or 0


def stat_memory(told: Mapping[str, str], what: str) -> str:
    """Return the memory of a ``relay`` or ``producer``, beside its bound where there is one."""
    resident_bytes = stat_number(told, f"{what}:resident_bytes")  # -1 is none
    return memory_text(resident_bytes or None, stat_count(told, f"{what}:memory_bound_bytes"))
