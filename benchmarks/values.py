"""Values with layers: what Snappy and xattrs cost a lake, beside the same values without them.

    make bench BENCH=values ARGS="--documents 100000 --repetitions 3"

Documents are JSON as applications write it, of about 100 B and 1 KB. Two tables:

* decoding: columns as they arrive, 2 MiB of frames at a time, to batches of ``changes``; documents
  a second of CPU, CPU seconds of a million (best of the repetitions), and that over plain values';
* sockets: a receiving task reads two producers, each a process of its own: one stores the
  documents plain, the other compressed; interleaved, medians.
"""

import argparse
import json
import multiprocessing
import random
import string
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import Final

import numpy as np

from benchmarks._producer import PASSWORD, USER, BenchProducer
from benchmarks._runs import settings_for
from benchmarks.end_to_end import plan_for
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.receive.batches import BatchBuilder
from dcp.lake.receive.source_access import source_access
from dcp.lake.receive.stop_policy import UNLIMITED
from dcp.lake.receive.task_receiver import TaskReceiver
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.columns import DataColumns, decode_columns
from dcp.wire.framing import FrameBlock
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype, Opcode
from dcp.wire.xattr import join_xattrs

SIZES: Final = {"100 B": 100, "1 KB": 1000}
READ_BYTES: Final = 2 * 1024 * 1024
VBUCKETS: Final = 16
FLOW: Final = FlowControlSettings()

Layered = Callable[[bytes], tuple[bytes, int]]
"""A document to the value and datatype that a server stores."""
Figures = tuple[float, float, float, int]
"""Seconds, CPU seconds of the client and of the producer, and bytes of frames."""

_rng: Final = random.Random(1)
_WORDS: Final = ["".join(_rng.choices(string.ascii_lowercase, k=2 + n % 9)) for n in range(2000)]


def document(value_bytes: int) -> bytes:
    """Return an order of about so many bytes, or a user, where that is all that fits."""
    word = partial(_rng.choice, _WORDS)
    told: dict[str, object] = {"id": _rng.randrange(10**9), "name": f"{word()} {word()}"}
    told |= {"city": word(), "active": True, "age": _rng.randrange(99)}
    items: list[dict[str, object]] = []
    while len(text := json.dumps(told).encode()) < value_bytes * 0.9:
        price = _rng.randrange(10_000) / 100
        items.append({"product": word(), "quantity": _rng.randrange(10), "price": price})
        told["items"] = items
    return text


def plain(body: bytes) -> tuple[bytes, int]:
    return body, int(Datatype.JSON)


def user_xattr(body: bytes) -> tuple[bytes, int]:
    meta = json.dumps({"source": _rng.choice(_WORDS), "n": _rng.randrange(1000)}).encode()
    return join_xattrs([(b"meta", meta)], body), int(Datatype.JSON | Datatype.XATTR)


def sync_xattr(body: bytes) -> tuple[bytes, int]:
    rev = f"1-{_rng.randbytes(16).hex()}"
    history = {"revs": [rev], "parents": [-1], "channels": [["a"]]}
    told = {"rev": rev, "sequence": _rng.randrange(10**6), "history": history, "channels": {}}
    section = [(b"_sync", json.dumps(told | {"cas": _rng.randbytes(8).hex()}).encode())]
    return join_xattrs(section, body), int(Datatype.JSON | Datatype.XATTR)


def compressed(layered: Layered, body: bytes) -> tuple[bytes, int]:
    value, datatype = layered(body)
    return deflate(value), datatype | int(Datatype.SNAPPY)


KINDS: Final[dict[str, Layered]] = {
    "plain": plain,
    "snappy": partial(compressed, plain),
    "user's xattr": user_xattr,
    "system xattr": sync_xattr,
    "snappy, user's xattr": partial(compressed, user_xattr),
    "snappy, system xattr": partial(compressed, sync_xattr),
}


def received(values: list[tuple[bytes, int]]) -> Iterator[DataColumns]:
    """Yield the columns of so many frames as one read brings."""
    frames: list[bytes] = []
    for seqno, (value, datatype) in enumerate(values, 1):
        mutation = m.Mutation(b"\0doc:%010d" % seqno, value, seqno, 1)
        frame = encode(mutation, Opcode.DCP_MUTATION, vbucket=1, datatype=datatype)
        frames.append(frame.to_bytes())
        if seqno == len(values) or len(frames) * len(frames[0]) >= READ_BYTES:
            block, frames = FrameBlock.of(frames), []
            yield decode_columns(block, np.arange(len(block)), collections=True)


def decode(parts: list[DataColumns], system_xattrs: bool) -> None:
    """Make batches of ``changes`` as a task does, and throw them away."""
    builder = BatchBuilder(1, FLOW.batch_rows, FLOW.batch_bytes, system_xattrs=system_xattrs)
    gathered = 0
    for part in parts:
        builder.add_documents(part)
        gathered += int(part.frame_bytes.sum())
        if gathered >= FLOW.batch_bytes or builder.rows >= FLOW.batch_rows or part is parts[-1]:
            gathered = 0
            for _ in builder.flush():
                pass


def measure_decoding(documents: int, repetitions: int) -> None:
    print(f"decoding, {documents:,} documents, best of {repetitions}")
    for size, value_bytes in SIZES.items():
        bodies = [document(value_bytes) for _ in range(documents)]
        base = 0.0
        for kind, layered in KINDS.items():
            values = [layered(body) for body in bodies]
            parts = list(received(values))
            sent = sum(len(value) for value, _ in values) / documents
            for keeps in (False, True) if "system" in kind else (True,):
                seconds = min(cpu_of(partial(decode, parts, keeps)) for _ in range(repetitions))
                base = base or seconds
                name = kind + (", left out" if not keeps else "")
                print(
                    f"{size:>6}  {name:32} {sent:6.0f} B sent  {documents / seconds:11,.0f} docs/s"
                    f"  {seconds / documents * 1e6:6.2f} CPU s a million  {seconds / base:5.1f}",
                    flush=True,
                )


def cpu_of(work: Callable[[], None]) -> float:
    began = process_time()
    work()
    return process_time() - began


def serve(documents: int, value_bytes: int, kind: str, pipe: Connection) -> None:
    """Serve documents of a kind; answer every message with the CPU seconds used so far."""
    settings = ClusterSettings(
        vbuckets=VBUCKETS, users={USER: PASSWORD}, seed=1, record_seqnos=False
    )
    with ProducerCluster(settings) as cluster:
        for first in range(0, documents, 1000):
            with cluster.batch():
                for number in range(first, min(first + 1000, documents)):
                    value, datatype = KINDS[kind](document(value_bytes))
                    cluster.set(b"doc:%010d" % number, value, datatype=datatype)
        pipe.send(cluster.seeds)
        while pipe.recv():
            pipe.send(process_time())


@contextmanager
def reading(documents: int, value_bytes: int, kind: str) -> Iterator[Callable[[], Figures]]:
    """Start a producer of such documents; what is yielded reads them all, as a task does."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = documents, value_bytes, kind, there
    process = context.Process(target=serve, args=arguments, daemon=True)
    process.start()
    source = BenchProducer(tuple(here.recv()), documents, value_bytes, VBUCKETS, here)
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_for(source, Path(folder), "lake")
        plan, access = plan_for(settings, 1), source_access(settings)

        def producer_cpu() -> float:
            here.send(True)
            return float(here.recv())

        def read() -> Figures:
            task = TaskReceiver(plan.tasks[0], 1, UNLIMITED, access, f"values-{monotonic()}")
            theirs, began, cpu = producer_cpu(), monotonic(), process_time()
            for _ in task.batches():
                pass
            seconds, cpu = monotonic() - began, process_time() - cpu
            return seconds, cpu, producer_cpu() - theirs, task.done.frame_bytes

        yield read
    here.send(False)
    process.join()


def measure_sockets(documents: int, repetitions: int) -> None:
    print(f"sockets, {documents:,} documents, medians of {repetitions}")
    for size, value_bytes in SIZES.items():
        with ExitStack() as stack:
            readers = {
                kind: stack.enter_context(reading(documents, value_bytes, kind))
                for kind in ("plain", "snappy")
            }
            found: dict[str, list[Figures]] = {kind: [] for kind in readers}
            for repetition in range(repetitions + 1):
                for kind, read in readers.items():
                    figures = read()
                    if repetition:  # the first is to warm up
                        found[kind].append(figures)
        for kind, all_figures in found.items():
            seconds, cpu, theirs, frame_bytes = map(median, zip(*all_figures, strict=True))
            print(
                f"{size:>6}  {kind:8} {frame_bytes / documents:6.0f} B a frame"
                f"  {documents / seconds:11,.0f} docs/s  CPU s a million:"
                f" client {cpu / documents * 1e6:5.2f}, producer {theirs / documents * 1e6:5.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.values")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    measure_decoding(arguments.documents, arguments.repetitions)
    measure_sockets(arguments.documents, arguments.repetitions)


if __name__ == "__main__":
    main()
