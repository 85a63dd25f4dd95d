"""One Spark session for all tests of a run, and new lakes for each test."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from dcp.lake.tables import DOCS, LakeIdentity, LakeLocation, LakeTables, create_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Machines that run tests are busy: how long one example takes says nothing.
settings.register_profile("lake", deadline=None)
settings.load_profile("lake")

NewLake = Callable[[int], LakeTables]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    from dcp.lake.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        app_name="dcplake tests",
        master="local[2]",
        driver_memory="1500m",
        log_file=folder / "spark.log",
        extra={
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            # The tests are many short statements on few rows: compile little, and quickly.
            "spark.sql.codegen.wholeStage": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def new_lake(spark: "SparkSession", tmp_path: Path) -> NewLake:
    """Returns a function that makes a lake of so many vbuckets, with its replica ``docs``."""
    from dcp.lake.tables import ensure_replica

    numbers = itertools.count()

    def make(vbucket_count: int) -> LakeTables:
        location = LakeLocation(root=str(tmp_path / f"lake{next(numbers)}"))
        identity = LakeIdentity("lake-1", "default", "bucket-uuid", vbucket_count)
        lake = create_lake(spark, location, identity)
        ensure_replica(lake, DOCS)
        return lake

    return make
