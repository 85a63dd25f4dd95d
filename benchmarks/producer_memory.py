"""Memory of a producer full of small documents: resident bytes, bytes per document, load time.

    python -m benchmarks.producer_memory [--documents N] [--value-bytes N] [--vbuckets N]
        [--checkpoint-mib N]

The same documents are written one by one, in batches, to a bucket without and with a data folder,
which is then opened again; each in a process of its own, of which the resident bytes before the
bucket was made are taken off. The quota of the checkpoints is
part of all figures: they hold the newest writes.
"""

import argparse
import gc
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import psutil

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings

MIB = 1024 * 1024
BATCH_DOCUMENTS = 10_000


@dataclass(frozen=True, slots=True)
class Held:
    """What a process took for the bucket, and how long it needed to have it."""

    resident_bytes: int
    seconds: float


def resident_bytes() -> int:
    """Return the resident set of this process, without garbage."""
    gc.collect()
    return psutil.Process().memory_info().rss


def fill(cluster: ProducerCluster, documents: int, value_bytes: int) -> None:
    """Write that many documents, each with a value of its own."""
    for first in range(0, documents, BATCH_DOCUMENTS):
        with cluster.batch():
            for number in range(first, min(documents, first + BATCH_DOCUMENTS)):
                value = b'"%0*d"' % (value_bytes - 2, number)
                cluster.set(b"doc:%010d" % number, value)


def hold(
    pipe: "Connection[Any, Any]", settings: ClusterSettings, documents: int, value_bytes: int
) -> None:
    """Make the bucket in this process, fill it unless it has documents, and tell what it took."""
    before, begin = resident_bytes(), monotonic()
    cluster = ProducerCluster(settings)
    if not any(cluster.high_seqno(vbucket) for vbucket in range(settings.vbuckets)):
        fill(cluster, documents, value_bytes)
    seconds = monotonic() - begin
    taken = resident_bytes() - before
    pipe.send(Held(taken, seconds))
    cluster.stop()


@contextmanager
def holder(*arguments: object) -> Iterator["Connection[Any, Any]"]:
    """Run ``hold`` in a process of its own, to its end."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.join()
        ours.close()


def main() -> None:
    """Measure all variants and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--vbuckets", type=int, default=1024)
    parser.add_argument("--checkpoint-mib", type=int, default=256)
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        full = Path(scratch, "full")
        variants = {"memory": None, "folder": full, "folder, opened again": full}
        print(
            f"{arguments.documents:,} documents of {arguments.value_bytes:,} B, "
            f"{arguments.vbuckets} vbuckets, "
            f"checkpoint quota {arguments.checkpoint_mib} MiB"
        )
        for name, folder in variants.items():
            settings = ClusterSettings(
                vbuckets=arguments.vbuckets,
                seed=1,
                record_seqnos=False,
                record_branches=False,
                checkpoint_quota_bytes=arguments.checkpoint_mib * MIB,
                data_folder=folder,
            )
            with holder(settings, arguments.documents, arguments.value_bytes) as pipe:
                held: Held = pipe.recv()
            print(
                f"{name:28} {held.resident_bytes / MIB:8,.0f} MiB "
                f"{held.resident_bytes / arguments.documents:8,.0f} B/document "
                f"{held.seconds:7.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
