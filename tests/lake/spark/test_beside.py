"""What works on one session of a user at the same time: runs, queries and views."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession as Session

from dcp.lake.adapters.opening import spark_of
from dcp.lake.adapters.transaction import FEW_JOBS_TO_JOIN, fenced
from dcp.lake.config.required_spark import REQUIRED_SPARK
from dcp.lake.config.settings import LakeSettings, Settings, SourceSettings
from dcp.lake.spark.beside import is_same
from dcp.lake.spark.session import active_session_kept
from dcplake.lake import Lake
from tests.lake.conftest import NewLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def user(spark: "SparkSession") -> "Iterator[SparkSession]":
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    session.conf.set("spark.sql.caseSensitive", "true")
    session.conf.set("theirs", "x")
    yield session
    spark.createDataFrame([], "a INT")  # the active one again


def test_openings_in_other_threads_leave_a_statement_its_settings(user: "SparkSession") -> None:
    theirs, settings = dict(user.conf.getAll), Settings(SourceSettings())
    first = spark_of(settings, user)()
    with (
        fenced(first, ("lake-1", 7), {"lake": "lake-1"}, FEW_JOBS_TO_JOIN),
        ThreadPoolExecutor(2) as pool,
    ):
        during = dict(first.conf.getAll)
        others = [pool.submit(spark_of(settings, user)) for _ in range(2)]
        for session in (each.result() for each in others):
            found = dict(session.conf.getAll)
            assert found["theirs"] == "x"
            assert REQUIRED_SPARK.items() <= found.items()
            assert "spark.databricks.delta.write.txnAppId" not in found
        assert dict(first.conf.getAll) == during
        assert during["spark.databricks.delta.write.txnAppId"] == "lake-1"
    assert dict(user.conf.getAll) == theirs


def test_data_frames_that_threads_ask_for_leave_the_session_its_settings(
    user: "SparkSession", new_lake: NewLake
) -> None:
    root = new_lake(1).location.root
    assert root is not None
    lake = Lake(Settings(SourceSettings(), lake=LakeSettings(root=root)), user)
    lake.to_dataframe()  # Delta sets some of its own
    theirs = dict(user.conf.getAll)
    with ThreadPoolExecutor(4) as pool:
        frames = list(pool.map(lake.to_dataframe, ["docs", "docs_live"] * 2))
    assert all(is_same(frame.sparkSession, user) for frame in frames)
    assert dict(user.conf.getAll) == theirs


def test_a_thread_has_the_session_of_the_process_after_work_in_another(
    user: "SparkSession", spark: "SparkSession"
) -> None:
    def active_after_work() -> "SparkSession | None":
        with active_session_kept():
            user.createDataFrame([], "a INT")
        return Session.getActiveSession()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(active_after_work).result()
    assert found is not None and is_same(found, spark)
