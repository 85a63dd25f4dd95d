"""Bounds a producer's memory by a formula; ``docs/reference/memory.md`` explains it.

Every part follows from a limit that somebody enforces, but for the keys: of each document key and
metadata are in memory. The relay, which serves as a producer does, has a formula of its own
(``dcp/relay/memory.py``) of the same parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from dcp.server.bucket.flusher import MOST_SHARE, REFUSED_SHARE
from dcp.server.bucket.unsent_bytes import FIRST_BATCH_BYTES, UNSENT_QUOTA_BYTES
from dcp.server.model.cluster_settings import OUTBOX_BYTES
from dcp.server.model.versions import OVERHEAD_BYTES
from dcp.server.vbucket.key_index import KeyIndex

MEBIBYTE: Final = 1024 * 1024
DOCUMENT_BYTES: Final = 20 * MEBIBYTE
"""The largest document of Couchbase (kv_engine ``max_item_size``)."""
FIXED_BYTES: Final = 110 * MEBIBYTE
"""An interpreter with numpy, the server, the vbuckets with nothing in them."""
READ_BYTES: Final = MEBIBYTE
"""What a connection may have read at once, and what its objects take."""
STREAM_BYTES: Final = 4 * 1024
"""A stream with its cursor, and its snapshot in force."""
DISK_ITEM_BYTES: Final = 32
"""An item's place in the index of its vbucket's log."""
MESSAGES_IN_WORK: Final = 4
"""Of the largest message: read for the disk, on its way from there, and being joined or split."""

_SAMPLE_KEYS: Final = 8


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a server: documents, connections and streams.

    ``documents`` counts tombstones too, ``key_bytes`` is the average. ``largest_bytes`` is the
    largest document, ``connections`` are those of clients, and ``streams`` all of theirs.
    """

    documents: int
    key_bytes: int = 32
    connections: int = 1
    streams: int = 0
    largest_bytes: int = DOCUMENT_BYTES


def keys_of(indexes: Sequence[KeyIndex]) -> tuple[int, int]:
    """Return how many keys there are, and their average length, guessed from some of each."""
    some = [len(each.key) for index in indexes for each in islice(index.versions, _SAMPLE_KEYS)]
    return sum(map(len, indexes)), -(-sum(some) // max(1, len(some)))


def documents_bytes(load: Load) -> int:
    """Return the memory of keys, metadata and places on disk; values come on top."""
    return load.documents * (OVERHEAD_BYTES + load.key_bytes + DISK_ITEM_BYTES)


def checkpoints_bytes(quota_bytes: int, *, takes_writes: bool) -> int:
    """Return the memory of the newest items, and of those that are not on disk yet.

    Where clients write, more of these is taken while some log cannot be written.
    """
    return quota_bytes + int(quota_bytes * (REFUSED_SHARE if takes_writes else MOST_SHARE))


def clients_bytes(load: Load) -> int:
    """Return the memory of all clients if none of them reads anything."""
    connection = FIRST_BATCH_BYTES + load.largest_bytes + 2 * OUTBOX_BYTES + READ_BYTES
    return UNSENT_QUOTA_BYTES + load.connections * connection + load.streams * STREAM_BYTES


def producer_bytes(
    load: Load, *, checkpoint_quota_bytes: int, values_bytes: int, log_bytes: int = 0
) -> int:
    """Return the most that the process of a producer with one node takes.

    ``values_bytes`` is the size of all values, ``log_bytes`` that of the logs where they are in
    memory. Each connection may be writing a document.
    """
    return (
        FIXED_BYTES
        + documents_bytes(load)
        + values_bytes
        + log_bytes
        + checkpoints_bytes(checkpoint_quota_bytes, takes_writes=True)
        + clients_bytes(load)
        + (MESSAGES_IN_WORK + 2 * load.connections) * load.largest_bytes
    )


def in_words(bytes_of: Callable[[Load], int]) -> str:
    """Return a formula's result in words: without keys and clients, and the addition for each."""
    nothing = Load(0, key_bytes=0, connections=0)
    least = bytes_of(nothing)
    key = bytes_of(replace(nothing, documents=1)) - least
    client = bytes_of(replace(nothing, connections=1)) - least
    return (
        f"at most {least // MEBIBYTE:,} MiB, for each key {key} bytes and its length, for each "
        f"client {client // MEBIBYTE} MiB (documents of {nothing.largest_bytes // MEBIBYTE} MiB)"
    )
