"""Backfill drain: the official Java client and ours, in turns, on one `dcplake serve`.

    python -m benchmarks.producer_drain [--documents N] [--value-bytes N] [--rounds N]
        [--collections N]

Three processes: the producer with documents on its disk, the Java client, our client. Each client
takes everything from the beginning to now with the same window, again and again; the first of each
are left out as warming up. With ``--collections`` so many are created behind the documents: then no
vbucket holds documents only. Printed are medians of documents/s and MB/s (keys and values), and the
CPU seconds of the client's and of the producer's process. Needs the Java driver of `make interop`;
without it only ours is measured.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from benchmarks._served import PASSWORD, USER, Served, served
from benchmarks.drain import VBUCKETS, drain
from dcp.client.settings import MIB, ConnectionSettings
from dcp.producer.admin_client import AdminClient
from dcp.producer.preload import PreloadSettings, ids_by_vbucket

JAVA = Path(__file__).parent.parent / "tests" / "interop" / "java" / "target"
WINDOW_BYTES = 10 * MIB


@dataclass(frozen=True)
class Drained:
    documents: int
    seconds: float
    client_cpu_seconds: float
    producer_cpu_seconds: float = 0.0


class Drainer(Protocol):
    """A client that takes everything once."""

    def __call__(self) -> Drained:
        """Return what it took, without the producer's part."""


def create_collections(producer: Served, count: int) -> None:
    with AdminClient(producer.seeds, USER, PASSWORD, "default") as admin:
        for number in range(count):
            admin.create_collection(f"_default.c{number}")


@contextmanager
def java_client(producer: Served) -> Iterator[Drainer]:
    command = ["java", "-Xmx512m", "-cp", f"{JAVA / 'classes'}:{JAVA / 'lib'}/*"]
    command += ["dcplake.interop.Drain", "--seeds", producer.seeds[0], "--user", USER]
    command += ["--window-bytes", str(WINDOW_BYTES)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "DRIVER_PASSWORD": PASSWORD},
    )

    def once() -> Drained:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        process.stdin.write("drain\n")
        process.stdin.flush()
        told = json.loads(process.stdout.readline())
        return Drained(told["documents"], told["nanos"] / 1e9, told["cpu_nanos"] / 1e9)

    try:
        yield once
    finally:
        process.kill()
        process.communicate()


@contextmanager
def our_client(producer: Served, high_seqnos: list[int]) -> Iterator[Drainer]:
    settings = ConnectionSettings("default", window_bytes=WINDOW_BYTES)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:

        def once() -> Drained:
            run = process.submit(drain, producer.seeds, high_seqnos, settings).result()
            return Drained(run.documents, run.seconds, run.cpu_seconds)

        yield once


def measured(producer: Served, client: Drainer) -> Drained:
    before = producer.cpu_seconds
    run = client()
    cpu_seconds = producer.cpu_seconds - before
    return Drained(run.documents, run.seconds, run.client_cpu_seconds, cpu_seconds)


def line(name: str, runs: list[Drained], document_bytes: int) -> str:
    seconds = median(run.seconds for run in runs)
    documents = runs[0].documents
    return (
        f"{name:12} {documents / seconds:>11,.0f} docs/s"
        f" {documents * document_bytes / seconds / 1e6:>7.0f} MB/s"
        f"   CPU s: client {median(run.client_cpu_seconds for run in runs):.2f}"
        f"   producer {median(run.producer_cpu_seconds for run in runs):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--collections", type=int, default=0)
    arguments = parser.parse_args()
    settings = PreloadSettings(arguments.documents, arguments.value_bytes)
    events = arguments.collections  # one in each vbucket
    high_seqnos = [len(ids) + events for ids in ids_by_vbucket(settings, VBUCKETS)]
    runs: dict[str, list[Drained]] = {}
    with (
        served(arguments.documents, arguments.value_bytes, VBUCKETS) as producer,
        java_client(producer) as java,
        our_client(producer, high_seqnos) as ours,
    ):
        create_collections(producer, arguments.collections)
        clients = {"Java 0.56.0": java, "ours": ours}
        if not (JAVA / "classes").exists():
            print("the Java driver is not built (make interop): only ours is measured")
            del clients["Java 0.56.0"]
        for client in clients.values():
            client()
        for _ in range(arguments.rounds):
            for name, client in clients.items():
                runs.setdefault(name, []).append(measured(producer, client))
    for name, found in runs.items():
        if {run.documents for run in found} != {arguments.documents}:
            raise SystemExit(f"{name}: not every run had all documents")
        print(line(name, found, arguments.value_bytes + len(settings.prefix) + 10))
    if len(runs) > 1:
        java_seconds, our_seconds = (
            median(run.seconds for run in found) for found in runs.values()
        )
        print(f"ours over Java: {java_seconds / our_seconds:.2f}")


if __name__ == "__main__":
    main()
