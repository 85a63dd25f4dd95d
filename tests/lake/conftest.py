"""New lakes for each test."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.lake.tables.lake_identity import LakeIdentity
from dcp.lake.tables.tables import DOCS, LakeLocation, LakeTables, create_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NewLake = Callable[[int], LakeTables]


@pytest.fixture
def new_lake(spark: "SparkSession", tmp_path: Path) -> NewLake:
    """Returns a function that makes a lake of so many vbuckets, with its replica ``docs``."""
    from dcp.lake.tables.tables import ensure_replica

    numbers = itertools.count()

    def make(vbucket_count: int) -> LakeTables:
        location = LakeLocation(root=str(tmp_path / f"lake{next(numbers)}"))
        identity = LakeIdentity("lake-1", "default", "bucket-uuid", vbucket_count)
        lake = create_lake(lambda: spark, location, identity)
        ensure_replica(lake, DOCS)
        return lake

    return make
