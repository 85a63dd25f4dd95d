"""Reads a node's answers to STAT for the views: groups that only ours have, and numbers."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TypeVar

from dcp.client.settings import ConnectionSettings
from dcp.errors import NodeUnavailableError, SourceError
from dcp.producer.kv_connection import KvConnection
from dcp.protocol.credentials import Credentials
from dcp.records import read
from dcp.seeds import parse_seed
from dcp.wire.json_tree import json_tree

_Figures = TypeVar("_Figures")


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


def figures_of_ours(connection: KvConnection, group: str, kind: type[_Figures]) -> _Figures | None:
    """Return the figures of a group that only our relays, or producers, have; None: it has none.

    Raises:
        NodeUnavailableError: the node is lost.
    """
    try:
        told = connection.statistics(group).get(group)
        return None if told is None else read(kind, json_tree(told))
    except NodeUnavailableError:
        raise
    except (SourceError, AttributeError, TypeError, ValueError):  # refused, or of another version
        return None


def stat_number(told: Mapping[str, str], name: str) -> int | None:
    """Return a number; None where it is not told, or is none."""
    text = told.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def stat_count(told: Mapping[str, str], name: str) -> int:
    """Return a number; 0 where it is not told, or is none."""
    return stat_number(told, name) or 0
