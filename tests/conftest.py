"""What all tests share: one Spark session for a run, and Hypothesis without a clock."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Machines that run tests are busy: how long one example takes says nothing.
settings.register_profile("dcplake", deadline=None, print_blob=True)
settings.load_profile("dcplake")


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
            # C1 alone gets a code cache of 48 MB; Spark fills it, then compiles in circles.
            "spark.driver.extraJavaOptions": (
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=400m"
            ),
        },
    )
    yield session
    session.stop()
