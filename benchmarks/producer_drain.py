"""Backfill drain: the official Java and Go clients and ours, in turns, on one producer.

    python -m benchmarks.producer_drain [--sizes N …] [--megabytes N] [--rounds N] [--collections N]

A process each: the producer with documents on its disk, and the clients. Each client takes
everything from the beginning to now with the same window, again and again; the first of each are
left out as warming up. With ``--collections`` so many are created behind the documents: then no
vbucket holds documents only. Printed are, for each size of values, medians of documents/s and MB/s
(keys and values), and the CPU seconds of the client's and of the producer's process; then ours over
the others by documents/s and by documents for a CPU second of the client. Needs the drivers of
`make interop`; one that is not built is left out.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from benchmarks._documents import KEY_BYTES, key_of
from benchmarks._producer import PASSWORD, USER
from benchmarks._served import Served, served
from benchmarks.drain import VBUCKETS, drain
from dcp.client.kv.admin_client import AdminClient
from dcp.client.settings import MIB, ConnectionSettings
from dcp.types import vbucket_of

INTEROP = Path(__file__).parent.parent / "tests" / "interop"
JAVA = INTEROP / "java" / "target"
GO = INTEROP / "go" / "bin" / "driver"
JAVA_COMMAND = ["java", "-Xmx512m", "-cp", f"{JAVA / 'classes'}:{JAVA / 'lib'}/*"]
JAVA_COMMAND += ["dcplake.interop.Drain"]
GO_COMMAND = [str(GO), "--to", "drain"]
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
def driver(command: list[str], producer: Served) -> Iterator[Drainer]:
    """A client of another language, which drains for each line that it gets."""
    command = [*command, "--seeds", producer.seeds[0], "--user", USER]
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
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 20_000])
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--collections", type=int, default=0)
    arguments = parser.parse_args()
    for value_bytes in arguments.sizes:
        documents = max(1000, arguments.megabytes * 1_000_000 // (value_bytes + 80))
        measure(documents, value_bytes, arguments.rounds, arguments.collections)


def measure(documents: int, value_bytes: int, rounds: int, collections: int) -> None:
    """Measure all clients with documents of one size, and print."""
    # A collection's beginning is an event in each vbucket.
    placed = Counter(vbucket_of(key_of(number), VBUCKETS) for number in range(documents))
    high_seqnos = [placed[vbucket] + collections for vbucket in range(VBUCKETS)]
    runs: dict[str, list[Drained]] = {}
    with ExitStack() as stack:
        producer = stack.enter_context(served(documents, value_bytes, VBUCKETS))
        create_collections(producer, collections)
        clients = {"ours": stack.enter_context(our_client(producer, high_seqnos))}
        for name, command, built in (
            ("Java 0.56.0", JAVA_COMMAND, JAVA / "classes"),
            ("Go 10.8.1", GO_COMMAND, GO),
        ):
            if built.exists():
                clients[name] = stack.enter_context(driver(command, producer))
            else:
                print(f"{name}: its driver is not built (make interop)")
        for client in clients.values():
            client()
        for _ in range(rounds):
            for name, client in clients.items():
                runs.setdefault(name, []).append(measured(producer, client))
    print(f"{documents:,} documents of {value_bytes:,} bytes")
    for name, found in runs.items():
        if {run.documents for run in found} != {documents}:
            raise SystemExit(f"{name}: not every run had all documents")
        print(line(name, found, value_bytes + KEY_BYTES))
    ours = runs.pop("ours")
    for name, found in runs.items():
        speed = median(run.seconds for run in found) / median(run.seconds for run in ours)
        cpu = median(run.client_cpu_seconds for run in found)
        own_cpu = median(run.client_cpu_seconds for run in ours)
        print(f"ours over {name}: docs/s {speed:.2f}, for a CPU second {cpu / own_cpu:.2f}")


if __name__ == "__main__":
    main()
