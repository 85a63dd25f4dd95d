"""New lakes for each test."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from dcp.lake.adapters.opening import refuse_to_start
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.store.location import LakeLocation
from dcp.lake.tables.lake_tables import (
    DOCS,
    LakeIdentity,
    LakeTables,
    create_lake,
    ensure_replicas,
    open_lake,
)
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.driver_host import QUICKLY_GIVEN_UP, DriverHost
from tests.lake.interrupted_lakes import IDLE_SECONDS, InterruptedLakes
from tests.lake.memory_store import MemoryStore, lake_in_memory
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NewLake = Callable[[int], LakeTables]


_made: Final[dict[int, Path]] = {}
"""An empty lake of this process for each number of vbuckets: a copy takes no Spark."""


@pytest.fixture
def new_lake(
    spark: "SparkSession", tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> NewLake:
    """Returns a function that makes a lake of so many vbuckets, with its replica ``docs``."""
    numbers = itertools.count()

    def make(vbucket_count: int) -> LakeTables:
        if vbucket_count not in _made:
            empty = tmp_path_factory.mktemp("empty") / "lake"
            identity = LakeIdentity("lake-1", "default", "bucket-uuid", vbucket_count)
            lake = create_lake(SparkStore(lambda: spark, LakeLocation(root=str(empty))), identity)
            ensure_replicas(lake, [DOCS])
            _made[vbucket_count] = empty
        root = tmp_path / f"lake{next(numbers)}"
        shutil.copytree(_made[vbucket_count], root)
        return open_lake(SparkStore(lambda: spark, LakeLocation(root=str(root))))

    return make


@pytest.fixture
def new_lake_in_memory() -> NewLake:
    """Returns the same for a lake in memory."""

    def make(vbucket_count: int) -> LakeTables:
        lake = lake_in_memory(vbucket_count)
        ensure_replicas(lake, [DOCS])
        return lake

    return make


@pytest.fixture
def view(spark: "SparkSession") -> Callable[[LakeTables], None]:
    """Returns a function that lets Spark query a lake in memory."""
    from dcp.lake.spark.beside import session_beside

    def let_see(lake: LakeTables) -> None:
        assert isinstance(lake.store, MemoryStore)
        lake.store.viewer = lake.store.viewer or session_beside(spark)

    return let_see


@pytest.fixture
def lakes_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the product make and open its lakes in memory, by their locations; Spark never starts."""
    stores: dict[str, MemoryStore] = {}

    def store(_: object, location: LakeLocation) -> MemoryStore:
        return stores.setdefault(str(location), MemoryStore())

    monkeypatch.setattr("dcp.lake.adapters.opening.SparkStore", store)
    monkeypatch.setattr("dcp.lake.adapters.opening.session", lambda *_, **__: refuse_to_start())


@pytest.fixture(scope="session")
def interrupted_lakes(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InterruptedLakes]:
    """One bucket and its lakes for all tests that stop or kill a driver in a statement."""
    [seed] = seeds(1, first=8000)
    folder = tmp_path_factory.mktemp("interrupted")
    settings = ClusterSettings(nodes=2, vbuckets=4, seed=seed, idle_timeout_seconds=IDLE_SECONDS)
    with ProducerCluster(settings) as cluster:
        yield InterruptedLakes(cluster, spark, folder, seed)


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DriverHost]]:
    """The driver that `host` has made, if any."""
    made: list[DriverHost] = []
    yield made
    for each in made:
        each.kill()


@pytest.fixture
def host(hosts: list[DriverHost], tmp_path_factory: pytest.TempPathFactory) -> DriverHost:
    """One driver in a process of its own for all tests that take it, until one kills it.

    ``tests/conftest.py`` names their modules.
    """
    if not hosts or not hosts[-1].is_free:
        while hosts:
            hosts.pop().kill()
        folder = tmp_path_factory.mktemp("driver") / "host"
        hosts.append(DriverHost(folder, QUICKLY_GIVEN_UP))
    return hosts[-1]
