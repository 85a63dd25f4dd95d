"""Terms of the most memory that a server takes; ``docs/reference/memory.md`` explains them.

Each term follows from an enforced limit, except for keys: key and metadata of every document are in
memory. The producer (``dcp/producer/memory.py``) and the relay (``dcp/relay/memory.py``)
add them up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from dcp.server.bucket.client_load import FIRST_BATCH_BYTES, UNSENT_QUOTA_BYTES
from dcp.server.bucket.flusher import MOST_SHARE, REFUSED_SHARE
from dcp.server.model.server_settings import OUTBOX_BYTES
from dcp.server.model.versions import OVERHEAD_BYTES
from dcp.server.vbucket.newest_versions import NewestVersions

MEBIBYTE: Final = 1024 * 1024
DOCUMENT_BYTES: Final = 20 * MEBIBYTE
"""Largest document of Couchbase (kv_engine ``max_item_size``)."""
FIXED_BYTES: Final = 110 * MEBIBYTE
"""An interpreter with numpy, the server, and empty vbuckets."""
READ_BYTES: Final = MEBIBYTE
"""One read from a connection's socket, and the connection's objects."""
STREAM_BYTES: Final = 4 * 1024
"""A stream with its cursor and its current snapshot."""
DISK_ITEM_BYTES: Final = 36
"""An item's entry in the index of its vbucket's disk log."""
MESSAGES_IN_WORK: Final = 4
"""Copies of the largest message in work: read for the disk, read from disk, joined or split."""

_SAMPLE_KEYS: Final = 8


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a server."""

    documents: int
    """Documents and tombstones."""
    key_bytes: int = 32
    """Average length of a key."""
    connections: int = 1
    """Connections of clients."""
    streams: int = 0
    """Streams of all connections together."""
    largest_bytes: int = DOCUMENT_BYTES
    """Size of the largest document."""


def keys_of(vbuckets: Sequence[NewestVersions]) -> tuple[int, int]:
    """Return the number of keys, and their average length estimated from a few of each vbucket."""
    some = [len(each.key) for newest in vbuckets for each in islice(newest.versions, _SAMPLE_KEYS)]
    return sum(map(len, vbuckets)), -(-sum(some) // max(1, len(some)))


def documents_bytes(load: Load) -> int:
    """Return the memory of keys, metadata and index entries; values come on top."""
    return load.documents * (OVERHEAD_BYTES + load.key_bytes + DISK_ITEM_BYTES)


def checkpoints_bytes(quota_bytes: int, *, takes_writes: bool) -> int:
    """Return the memory of checkpoints, and of items that are not on disk yet."""
    # Clients' writes go on a little longer than replicas' while some disk log cannot be written.
    return quota_bytes + int(quota_bytes * (REFUSED_SHARE if takes_writes else MOST_SHARE))


def clients_bytes(load: Load) -> int:
    """Return the memory of all clients if none of them reads its socket."""
    connection = FIRST_BATCH_BYTES + load.largest_bytes + 2 * OUTBOX_BYTES + READ_BYTES
    return UNSENT_QUOTA_BYTES + load.connections * connection + load.streams * STREAM_BYTES


def in_words(bytes_of: Callable[[Load], int]) -> str:
    """Describe a formula for a person: the fixed part, and the addition for each key and client."""
    nothing = Load(0, key_bytes=0, connections=0)
    least = bytes_of(nothing)
    key = bytes_of(replace(nothing, documents=1)) - least
    client = bytes_of(replace(nothing, connections=1)) - least
    return (
        f"at most {least // MEBIBYTE:,} MiB, for each key {key} bytes and its length, for each "
        f"client {client // MEBIBYTE} MiB (documents of {nothing.largest_bytes // MEBIBYTE} MiB)"
    )
