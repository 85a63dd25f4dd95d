"""A lake of many collections on S3: its tables are made, and looked at, many at once.

Without Spark.
"""

from collections import Counter
from collections.abc import Iterator
from threading import Lock
from time import sleep
from uuid import uuid4

import pytest

from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.store.location import LakeLocation
from dcp.lake.tables.lake_tables import (
    DOCS,
    LakeIdentity,
    LakeTables,
    create_lake,
    ensure_replicas,
    open_lake,
    refuse_lost_replica,
    replica_of,
    replicas_in,
)
from tests.lake.object_store import BUCKET, ObjectStore, Request, kind_of
from tests.lake.tables_at import no_spark

REPLICAS = [DOCS, *(replica_of("s", f"c{number}", 8 + number) for number in range(31))]
ANSWER_SECONDS = 0.05


class WatchedStore(ObjectStore):
    """Counts requests, and how many it answered at once at most."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Counter[str]()
        self.most_at_once = 0
        self._now = 0
        self._lock = Lock()
        self.answer = self._wait

    def _wait(self, request: Request) -> None:
        with self._lock:
            self.asked[kind_of(request)] += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        sleep(ANSWER_SECONDS)
        with self._lock:
            self._now -= 1

    def forget(self) -> None:
        self.asked.clear()
        self.most_at_once = 0


@pytest.fixture
def store() -> Iterator[WatchedStore]:
    with WatchedStore() as store:
        yield store


def opened(store: ObjectStore, root: str) -> SparkStore:
    location = LakeLocation(root=root, way=lambda _: store.location("").way)
    return SparkStore(no_spark, location)


def test_the_tables_of_many_collections_are_made_and_read_many_at_once(
    store: WatchedStore,
) -> None:
    root = f"s3://{BUCKET}/{uuid4().hex}"
    lake = create_lake(opened(store, root), LakeIdentity("lake-1", "default", "bucket-uuid", 2))
    store.forget()
    ensure_replicas(lake, REPLICAS)
    assert store.most_at_once >= 8
    assert store.asked["PUT"] == len(REPLICAS) + 1, "and one that lists them in changes"
    assert store.asked.total() <= 9 * len(REPLICAS)
    assert replicas_in(lake) == tuple(REPLICAS)


def test_tables_that_exist_are_read_once_in_a_block(store: WatchedStore) -> None:
    root = f"s3://{BUCKET}/{uuid4().hex}"
    ensure_replicas(
        create_lake(opened(store, root), LakeIdentity("lake-1", "default", "bucket-uuid", 2)),
        REPLICAS,
    )

    def read(lake: LakeTables) -> None:
        with lake.read_once():
            ensure_replicas(lake, REPLICAS)
            refuse_lost_replica(lake)
            assert replicas_in(lake) == tuple(REPLICAS)

    lake = open_lake(opened(store, root))
    store.forget()
    read(lake)
    assert store.most_at_once >= 8
    assert store.asked.total() <= 6 * (len(REPLICAS) + 1)
    store.forget()
    read(lake)
    assert store.asked == {"LIST": len(REPLICAS) + 1}
