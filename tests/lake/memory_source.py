"""A producer process for the memory tests: one vbucket, one snapshot, most of it shared values.

    python -m tests.lake.memory_source TOTAL_BYTES LARGE_BYTES SEED IDLE_SECONDS

Prints one JSON line when clients can connect, and one for each line that it reads: its counters.
Who says nothing for IDLE_SECONDS is taken for dead. Ends when its standard input does. Documents
share their value objects, so that gigabytes on the wire are a few megabytes here; each value is
valid JSON. The first ones are stored compressed, as far as Snappy can: they inflate to 20 times.
"""

import json
import random
import sys
from collections.abc import Iterator
from typing import Final

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype

USER, PASSWORD = "Administrator", "password"
LARGE_DOCUMENTS: Final = 20
"""A burst of half of them, one right after the other, then the others spread over the snapshot."""
SMALL_BYTES: Final = 16 * 1024
_SMALL_VALUES: Final = 64
SQUEEZED_DOCUMENTS: Final = 320
"""Compressed documents before all others, and one of LARGE_BYTES: more than a batch of frames."""
SQUEEZED_BYTES: Final = 256 * 1024


def main(arguments: list[str]) -> int:
    total_bytes, large_bytes, seed, idle_seconds = (int(argument) for argument in arguments)
    settings = ClusterSettings(
        vbuckets=1,
        users={USER: PASSWORD},
        seed=seed,
        checkpoint_items=10,
        record_seqnos=False,
        idle_timeout_seconds=idle_seconds,
    )
    with ProducerCluster(settings) as cluster:
        documents = 0
        with cluster.batch():
            for key, value, datatype in _documents(total_bytes, large_bytes, seed):
                cluster.set(key, value, datatype=datatype)
                documents += 1
        print(json.dumps({"seeds": cluster.seeds, "documents": documents}), flush=True)
        for _ in sys.stdin:
            counters = cluster.counters()
            unacked = [each.outstanding_bytes for each in counters.connections.values()]
            told = {
                "bytes_sent": counters.bytes_sent,
                "unacked_bytes": max(unacked, default=0),
                "peak_unacked_bytes": counters.peak_unacked_bytes,
                "items_sent": sum(counters.items_sent.values()),
                "noops_answered": counters.noops_answered,
                "buffer_acks": counters.buffer_acks,
                "connections_opened": counters.dcp_connections_opened,
                "streams_opened": sum(counters.streams_opened.values()),
            }
            print(json.dumps(told), flush=True)
    return 0


def _documents(total_bytes: int, large_bytes: int, seed: int) -> Iterator[tuple[bytes, bytes, int]]:
    squeezed = deflate(_json_of("x" * SQUEEZED_BYTES, SQUEEZED_BYTES))
    for number in range(SQUEEZED_DOCUMENTS):
        yield b"squeezed-%03d" % number, squeezed, int(Datatype.SNAPPY)
    yield b"squeezed-large", deflate(_json_of("x" * large_bytes, large_bytes)), int(Datatype.SNAPPY)
    for key, value in _incompressible(total_bytes, large_bytes, seed):
        yield key, value, 0


def _incompressible(total_bytes: int, large_bytes: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    rng = random.Random(seed)
    large = _json_of(rng.randbytes(large_bytes).hex(), large_bytes)
    small = [_json_of(rng.randbytes(SMALL_BYTES).hex(), SMALL_BYTES) for _ in range(_SMALL_VALUES)]
    large_count = min(LARGE_DOCUMENTS, total_bytes // (2 * large_bytes))
    small_count = max(0, total_bytes - large_count * large_bytes) // SMALL_BYTES
    burst = large_count // 2
    every = max(1, small_count // (large_count - burst + 1))
    made = burst
    for number in range(burst):
        yield b"large-%03d" % number, large
    for number in range(small_count):
        yield b"small-%08d" % number, small[number % _SMALL_VALUES]
        if number % every == every - 1 and made < large_count:
            yield b"large-%03d" % made, large
            made += 1


def _json_of(text: str, size: int) -> bytes:
    """Return a JSON object of exactly ``size`` bytes with so much of a text."""
    head, tail = b'{"pad":"', b'"}'
    return head + text.encode()[: size - len(head) - len(tail)] + tail


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
