"""Drain: a producer in a process of its own to decoded Arrow batches here, flow control on.

    python -m benchmarks.drain [--megabytes N] [--window-mib N] [--profile]

For values of 100 B, 1 KB and 20 KB: documents/s and MB/s (bytes of frames as flow control counts
them), CPU seconds of each side, and what a raw socket reader on the same machine gets from the same
producer, as a ratio: so the figures mean something on a busy machine too.
"""

import argparse
import cProfile
import multiprocessing
import os
import pstats
import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic, process_time

import pyarrow as pa

from benchmarks._documents import fill
from benchmarks._producer import PASSWORD, USER
from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.protocol_connection import new_protocol_connection
from dcp.client.reader import Reader
from dcp.client.settings import MIB, ConnectionSettings, ConsumerSettings
from dcp.client.vbucket_track import StreamStart
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.events import Items, SnapshotCompleted
from dcp.protocol.position import Position
from dcp.wire.framing import FrameSplitter

VBUCKETS = 16
CREDENTIALS = Credentials(USER, Secret(PASSWORD))


@dataclass(frozen=True)
class Run:
    documents: int
    frame_bytes: int
    seconds: float
    cpu_seconds: float

    @property
    def megabytes_per_second(self) -> float:
        return self.frame_bytes / self.seconds / 1e6


def produce(count: int, value_bytes: int, pipe: Connection) -> None:
    """Serve a full bucket; answer every message with the CPU seconds used so far."""
    settings = ClusterSettings(
        vbuckets=VBUCKETS, users={USER: PASSWORD}, seed=1, record_seqnos=False
    )
    with ProducerCluster(settings) as cluster:
        fill(cluster, count, value_bytes)
        pipe.send((cluster.seeds, [cluster.high_seqno(v) for v in range(VBUCKETS)]))
        while pipe.recv():
            pipe.send(process_time())


def drain(seeds: list[str], high_seqnos: list[int], settings: ConnectionSettings) -> Run:
    """Take everything as one consumer does, turning rows into Arrow batches."""
    address = NodeAddress.parse(seeds[0])
    streams = [StreamStart(v, address, Position.beginning()) for v in range(VBUCKETS)]
    open_ends = {v for v, seqno in enumerate(high_seqnos) if seqno}
    documents = frame_bytes = 0
    began, cpu = monotonic(), process_time()
    with Consumer(streams, seeds, ConsumerSettings(settings), CREDENTIALS) as consumer:
        while open_ends:
            delivery = consumer.next(30.0)
            if delivery is None:
                raise SystemExit("nothing for 30 s")
            for event in delivery.events:
                if isinstance(event, Items):
                    documents += to_batch(event).num_rows
                elif (
                    isinstance(event, SnapshotCompleted)
                    and event.seqno >= high_seqnos[event.vbucket]
                ):
                    open_ends.discard(event.vbucket)
            frame_bytes += delivery.frame_bytes
            delivery.release()
        seconds = monotonic() - began
    return Run(documents, frame_bytes, seconds, process_time() - cpu)


def to_batch(items: Items) -> pa.RecordBatch:
    columns = items.columns
    fixed = ("opcode", "vbucket", "cas", "seqno", "rev", "flags", "expiry", "datatype")
    arrays = [pa.array(getattr(columns, name)) for name in fixed]
    return pa.RecordBatch.from_arrays(
        [*arrays, columns.key, columns.value], names=[*fixed, "key", "value"]
    )


def read_raw(seeds: list[str], frame_bytes: int, settings: ConnectionSettings) -> Run:
    """Bootstrap by the machine, then only count bytes and acknowledge them: the floor."""
    address = NodeAddress.parse(seeds[0])
    machine, splitter = (
        new_protocol_connection(settings, CREDENTIALS, "raw-reader"),
        FrameSplitter(),
    )
    with socket.create_connection((address.host, address.port)) as plain:
        machine.start(monotonic())
        while not machine.is_ready:
            plain.sendall(machine.bytes_to_send())
            machine.receive(splitter.feed(plain.recv(65536)), monotonic())
        for vbucket in range(VBUCKETS):
            machine.open_stream(vbucket, Position.beginning())
        plain.sendall(machine.bytes_to_send())
        began, cpu = monotonic(), process_time()
        buffer, received, acked = bytearray(2 * MIB), 0, 0
        while received < frame_bytes:
            received += plain.recv_into(buffer)
            if received - acked > settings.window_bytes // 5:
                ack = b"\x80\x5d\x00\x00\x04" + bytes(6) + b"\x04" + bytes(12)
                plain.sendall(ack + (received - acked).to_bytes(4, "big"))
                acked = received
        return Run(0, received, monotonic() - began, process_time() - cpu)


def measure(value_bytes: int, megabytes: int, settings: ConnectionSettings) -> None:
    count = max(1000, megabytes * 1_000_000 // (value_bytes + 80))
    here, there = multiprocessing.get_context("spawn").Pipe()
    producer = multiprocessing.get_context("spawn").Process(
        target=produce, args=(count, value_bytes, there)
    )
    producer.start()
    seeds, high_seqnos = here.recv()

    def producer_cpu() -> float:
        here.send(True)
        return float(here.recv())

    drain(seeds, high_seqnos, settings)  # the producer encodes its frames on first use
    before = producer_cpu()
    run = drain(seeds, high_seqnos, settings)
    producer_seconds = producer_cpu() - before
    raw = read_raw(seeds, run.frame_bytes, settings)
    here.send(False)
    producer.join()
    per_cpu_second = run.frame_bytes / run.cpu_seconds / 1e6
    print(
        f"{value_bytes:>6} B  {run.documents:>9,} docs"
        f"  {run.documents / run.seconds:>11,.0f} docs/s  {run.megabytes_per_second:>6.0f} MB/s"
        f"  ({per_cpu_second:.0f} MB per CPU second of the client)"
        f"  CPU s: client {run.cpu_seconds:.2f}, producer {producer_seconds:.2f}"
        f"  raw reader {raw.megabytes_per_second:>6.0f} MB/s"
        f"  ratio {run.megabytes_per_second / raw.megabytes_per_second:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--window-mib", type=int, default=10)
    parser.add_argument("--read-buffer-kib", type=int, default=2048)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 20_000])
    parser.add_argument("--profile", action="store_true", help="profile the reader thread")
    arguments = parser.parse_args()
    settings = ConnectionSettings(
        "default",
        window_bytes=arguments.window_mib * MIB,
        read_buffer_bytes=arguments.read_buffer_kib * 1024,
    )
    print(f"{os.cpu_count()} cores, window {arguments.window_mib} MiB")
    profile = profiled_readers() if arguments.profile else None
    for value_bytes in arguments.sizes:
        measure(value_bytes, arguments.megabytes, settings)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def profiled_readers() -> cProfile.Profile:
    """Let reader threads run under a profiler, which is returned."""
    profile, main_of_reader = cProfile.Profile(), Reader._main

    def run_profiled(reader: Reader) -> None:
        profile.runcall(main_of_reader, reader)

    Reader._main = run_profiled  # type: ignore[method-assign, assignment]
    return profile


if __name__ == "__main__":
    main()
