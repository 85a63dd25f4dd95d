"""A producer in a process of its own, with the documents that a benchmark makes."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from random import Random
from typing import Any

from benchmarks._producer import producer_settings
from dcp.producer.cluster import ProducerCluster

MakeDocument = Callable[[int, Random], bytes]
"""Returns the document of a number; a function of a module, as another process calls it."""


@contextmanager
def customers(documents: int, make: MakeDocument) -> Iterator[tuple[str, ...]]:
    """Serve so many documents, keyed ``customer:NUMBER``; gives the seeds once all are there."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, documents, make), daemon=True)
    process.start()
    yield ours.recv()
    ours.send(None)
    process.join()


def _serve(pipe: "Connection[Any, Any]", documents: int, make: MakeDocument) -> None:
    random = Random(1)
    with ProducerCluster(producer_settings(vbuckets=64)) as cluster:
        for begin in range(0, documents, 10_000):
            with cluster.batch():
                for number in range(begin, min(begin + 10_000, documents)):
                    cluster.set(b"customer:%d" % number, make(number, random))
        pipe.send(cluster.seeds)
        pipe.recv()
