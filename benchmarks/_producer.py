"""A producer in a process of its own, full of documents: it must not be the bottleneck.

The benchmark talks to it over a pipe. ``update`` overwrites documents that it holds, in chosen
vbuckets only or anywhere, at once; ``write`` so many a second for a while; ``fail_over`` loses what
was written since ``pause_replication``.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from random import Random
from time import monotonic, sleep
from typing import Any, Final

from benchmarks._documents import PREFIX, fill, key_of, value_of
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.types import vbucket_of

USER: Final = "Administrator"
PASSWORD: Final = "benchmark"  # noqa: S105  (of the producer that this process starts)
BENCH_VBUCKETS: Final = 64
_START_SECONDS: Final = 600
_ANSWER_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class BenchProducer:
    """A running producer: where it listens, and the pipe to it."""

    seeds: tuple[str, ...]
    documents: int
    value_bytes: int
    vbuckets: int
    _pipe: "Connection[Any, Any]"

    def fill_collections(self, count: int, documents: int) -> None:
        """Create so many collections beside the default one, each with a few documents."""
        self._order("fill_collections", count, documents)

    def update(self, count: int, seed: int, vbuckets: Sequence[int] | None = None) -> None:
        """Overwrite ``count`` different documents, of these vbuckets only where they are given."""
        self._order("update", count, seed, None if vbuckets is None else tuple(vbuckets))

    def write(self, a_second: int, seconds: float) -> int:
        """Overwrite documents at a steady rate; return how many when the time is over."""
        written: int = self._order("write", a_second, seconds, patience_seconds=2 * seconds + 60)
        return written

    def pause_replication(self) -> None:
        """Let all copies stand still, once they hold what was written before."""
        self._order("pause_replication")

    def fail_over(self) -> None:
        """Lose the node that holds all vbuckets; the other one's copies go on.

        The lost node comes back empty and has copied all when this returns, so that it can be
        repeated and the producer is idle. Needs two nodes.
        """
        self._order("fail_over")

    def most_outstanding(self) -> dict[str, int]:
        """Return the most that each connection left unacknowledged, by name, in bytes."""
        found: dict[str, int] = self._order("most_outstanding")
        return found

    def _order(self, *order: object, patience_seconds: float = _ANSWER_SECONDS) -> Any:
        self._pipe.send(order)
        if not self._pipe.poll(patience_seconds):
            raise TimeoutError(f"the producer did not {order[0]} in {patience_seconds} s")
        return self._pipe.recv()


@contextmanager
def producer(
    documents: int, value_bytes: int, vbuckets: int = BENCH_VBUCKETS, nodes: int = 1
) -> Iterator[BenchProducer]:
    """Start a producer with ``documents`` JSON documents of ``value_bytes``, all in one node."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, documents, value_bytes, vbuckets, nodes), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError(f"the producer was not ready in {_START_SECONDS} s")
        seeds: list[str] = ours.recv()
        yield BenchProducer(tuple(seeds), documents, value_bytes, vbuckets, ours)
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.terminate()


def producer_settings(vbuckets: int, nodes: int = 1) -> ClusterSettings:
    """Return the settings of a producer that keeps no records for tests; several nodes: 1 copy."""
    return ClusterSettings(
        nodes=nodes,
        vbuckets=vbuckets,
        replicas=min(1, nodes - 1),
        users={USER: PASSWORD},
        seed=1,
        record_seqnos=False,
        record_branches=False,
    )


def _serve(
    pipe: "Connection[Any, Any]", documents: int, value_bytes: int, vbuckets: int, nodes: int
) -> None:
    with ProducerCluster(producer_settings(vbuckets, nodes)) as cluster:
        for vbucket in range(vbuckets) if nodes > 1 else ():
            cluster.move_vbucket(vbucket, 0)
        fill(cluster, documents, value_bytes)
        pipe.send(cluster.seeds)
        while True:
            try:
                order, *arguments = pipe.recv()
            except EOFError:
                return
            answer: object = None
            if order == "update":
                count, seed, chosen = arguments
                _update(cluster, documents, value_bytes, Random(seed), count, chosen)
            elif order == "fill_collections":
                _fill_collections(cluster, *arguments)
            elif order == "write":
                answer = _write(cluster, documents, value_bytes, *arguments)
            elif order == "pause_replication":
                cluster.wait_until_replicated()
                cluster.pause_replication()
            elif order == "most_outstanding":
                connections = cluster.counters().connections
                answer = {name: each.peak_bytes for name, each in connections.items()}
            else:
                _fail_over(cluster)
            pipe.send(answer)


def _write(
    cluster: ProducerCluster, documents: int, value_bytes: int, a_second: int, seconds: float
) -> int:
    random, begin, written = Random(a_second), monotonic(), 0
    while (passed := monotonic() - begin) < seconds:
        while written < passed * a_second:
            number = random.randrange(documents)
            cluster.set(key_of(number), value_of(number, value_bytes, random))
            written += 1
        sleep(0.002)
    return written


def _fill_collections(cluster: ProducerCluster, count: int, documents: int) -> None:
    cluster.create_scope("bench")
    for number in range(count):
        collection = cluster.create_collection("bench", f"c{number}")
        with cluster.batch():
            for document in range(documents):
                cluster.set(PREFIX + b"%d" % document, b"1", collection=collection)


def _fail_over(cluster: ProducerCluster) -> None:
    node = cluster.vbucket_owner(0)
    cluster.failover(node)
    cluster.restore_node(node)
    cluster.resume_replication()
    cluster.wait_until_replicated()


def _update(
    cluster: ProducerCluster,
    documents: int,
    value_bytes: int,
    random: Random,
    count: int,
    chosen: tuple[int, ...] | None,
) -> None:
    vbuckets = cluster.settings.vbuckets
    updated: set[int] = set()
    with cluster.batch():
        while len(updated) < min(count, documents):
            number = random.randrange(documents)
            key = key_of(number)
            if number in updated or (chosen and vbucket_of(key, vbuckets) not in chosen):
                continue
            updated.add(number)
            cluster.set(key, value_of(number, value_bytes, random))
