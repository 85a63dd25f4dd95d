"""Many connections, many streams on one, and a load: what they cost a `dcplake serve`.

    python -m benchmarks.producer_connections [--connections N] [--writes N] [--documents N]

First N connections (200), each with a stream of all 64 vbuckets, caught up, while documents are
written: every connection must get every one of them. Then one connection with a stream of each of
1024 vbuckets. Printed are the producer's resident memory by connection and by stream, and its CPU
seconds by message. The clients share one process, which only splits frames. Then `dcplake load` of
N documents (100,000) of half a KB into 64 and into 1024 vbuckets: documents a second, and the CPU
of both processes by document.
"""

import argparse
import os
import resource
import selectors
import socket
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic

from benchmarks._documents import value_of
from benchmarks._producer import PASSWORD, USER
from benchmarks._served import Served, served
from dcp.client.kv.kv_client import KvClient
from dcp.client.protocol_connection import new_protocol_connection
from dcp.client.settings import MIB, ConnectionSettings
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.position import Position
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode

CREDENTIALS = Credentials(USER, Secret(PASSWORD))
VALUE_BYTES = 200
LOADED_BYTES = 500
BATCH = 500
IDLE_SECONDS = 60.0


class Reader:
    """One connection; ``mutations`` counts what came."""

    def __init__(self, producer: Served, name: str, vbuckets: int) -> None:
        host, port = producer.seeds[0].rsplit(":", 1)
        settings = ConnectionSettings("default", window_bytes=512 * MIB)
        self.socket = socket.create_connection((host, int(port)), 10.0)
        self.mutations = self.streams = 0
        self._splitter = FrameSplitter()
        machine, splitter = new_protocol_connection(settings, CREDENTIALS, name), FrameSplitter()
        machine.start(monotonic())
        while not machine.is_ready:
            self.socket.sendall(machine.bytes_to_send())
            machine.receive(splitter.feed(self.socket.recv(65536)), monotonic())
        for vbucket in range(vbuckets):
            machine.open_stream(vbucket, Position.beginning())
        self.socket.sendall(machine.bytes_to_send())

    def read(self) -> None:
        """Take what is there."""
        data = self.socket.recv(MIB)
        if not data:
            raise SystemExit("the producer closed a connection")
        opcodes = self._splitter.feed(data).opcodes
        self.mutations += int((opcodes == Opcode.DCP_MUTATION).sum())
        self.streams += int((opcodes == Opcode.DCP_STREAM_REQ).sum())


def read_until(readers: list[Reader], *, mutations: int, streams: int) -> None:
    """Read from all until each has so many of both."""
    left = set(readers)
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        while left := {r for r in left if r.mutations < mutations or r.streams < streams}:
            ready = selector.select(IDLE_SECONDS)
            if not ready:
                raise SystemExit(
                    f"nothing for {IDLE_SECONDS} s, {len(left)} readers lack something"
                )
            for key, _ in ready:
                key.data.read()


def measure(count: int, vbuckets: int, writes: int) -> None:
    """Open, write, and say what it cost."""
    with served(0, 0, vbuckets) as producer:
        writer = KvClient(producer.seeds, USER, PASSWORD, "default")
        before = producer.resident_bytes
        cpu, began = producer.cpu_seconds, monotonic()
        readers = [Reader(producer, f"bench-{number}", vbuckets) for number in range(count)]
        read_until(readers, mutations=0, streams=vbuckets)
        opened, open_seconds = producer.cpu_seconds - cpu, monotonic() - began
        idle = producer.resident_bytes
        cpu, began = producer.cpu_seconds, monotonic()
        with writer:
            for first in range(0, writes, BATCH):
                numbers = range(first, min(first + BATCH, writes))
                writer.set([(b"k%08d" % number, b"x" * VALUE_BYTES) for number in numbers])
                read_until(readers, mutations=numbers.stop, streams=vbuckets)
        seconds = monotonic() - began
        cpu_seconds = producer.cpu_seconds - cpu
        streaming = producer.resident_bytes
        if {reader.mutations for reader in readers} != {writes}:
            raise SystemExit("a reader got something twice")
        for reader in readers:
            reader.socket.close()
    messages = writes * count
    print(
        f"{count} connections of {vbuckets} streams: opened in {open_seconds:.1f} s"
        f" ({opened:.1f} CPU s); {(idle - before) / count / 1024:,.0f} KiB a connection,"
        f" {(idle - before) / count / vbuckets / 1024:.1f} KiB a stream\n"
        f"  {writes:,} writes, {messages:,} messages, all there: {messages / seconds:,.0f}/s,"
        f" {cpu_seconds / messages * 1e6:.1f} µs of CPU a message;"
        f" {(streaming - before) / MIB:.0f} MiB more than empty, documents included",
        flush=True,
    )


def measure_load(documents: int, vbuckets: int) -> None:
    """Load JSON lines with the command, and say what it cost."""
    words = [sys.executable, "-m", "dcp.cli.main", "load", "--user", USER, "--key-field", "id"]
    with TemporaryDirectory() as folder, served(0, 0, vbuckets) as producer:
        file = Path(folder, "documents.jsonl")
        random = Random(0)
        with file.open("wb") as lines:
            lines.writelines(value_of(n, LOADED_BYTES, random) + b"\n" for n in range(documents))
        cpu, client, began = producer.cpu_seconds, _children_cpu_seconds(), monotonic()
        subprocess.run(
            [*words, "--seeds", ",".join(producer.seeds), str(file)],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "DCPLAKE_PASSWORD": PASSWORD},
        )
        seconds = monotonic() - began
        cpu, client = producer.cpu_seconds - cpu, _children_cpu_seconds() - client
    print(
        f"load of {documents:,} documents into {vbuckets} vbuckets: {documents / seconds:,.0f}/s, "
        f"{cpu / documents * 1e6:.0f} µs of CPU a document in the producer, "
        f"{client / documents * 1e6:.0f} µs in the client, its start included",
        flush=True,
    )


def _children_cpu_seconds() -> float:
    """Return what processes used that ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--writes", type=int, default=3000)
    parser.add_argument("--documents", type=int, default=100_000)
    arguments = parser.parse_args()
    measure(arguments.connections, 64, arguments.writes)
    measure(1, 1024, arguments.writes)
    measure_load(arguments.documents, 64)
    measure_load(arguments.documents, 1024)


if __name__ == "__main__":
    main()
