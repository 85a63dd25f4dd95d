"""Opens a lake for people: its tables under their plain names, its views, and the answers.

A folder lake's tables get their names in a database of their own, in the session's catalog where
that one ends with the session; so ``docs VERSION AS OF 3`` works as it does in a catalog schema.
A catalog that outlives the session (Hive, Unity) is other people's: nothing is made in it, and the
names are temporary views. Nothing that somebody else made is ever dropped or replaced, except
temporary views of the same names in the same session.
"""

import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dcp.errors import ConfigError
from dcp.lake.run import lake_location, session
from dcp.lake.session import DELTA_CATALOG
from dcp.lake.settings import Settings
from dcp.lake.sql import dotted, quoted, string
from dcp.lake.tables import LakeTables, ReplicaTable, open_lake, replicas_in
from dcp.lake.views import register_views

_SESSION_CATALOG: Final = "spark_catalog"
_NO_TIME_TRAVEL: Final = "UNSUPPORTED_FEATURE.TIME_TRAVEL"


def open_for_queries(settings: Settings, spark: SparkSession | None = None) -> LakeTables:
    """Open the lake of ``settings``, name its tables and make its views.

    Raises:
        LakeError: there is no lake.

    """
    lake = open_lake(spark or session(settings), lake_location(settings))
    replicas = replicas_in(lake)
    name_tables(lake, replicas)
    register_views(lake, replicas)
    return lake


def name_tables(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> None:
    """Make the lake's tables known by their plain names, in the session's current schema."""
    if lake.location.schema is not None:
        lake.spark.sql(f"USE {dotted(lake.location.schema)}")
        return
    tables = ("changes", *(replica.name for replica in replicas))
    if not catalog_ends_with_session(lake.spark):
        for table in tables:
            lake.spark.sql(
                f"CREATE OR REPLACE TEMPORARY VIEW {quoted(table)} AS "
                f"SELECT * FROM {lake.table_sql(table)}"
            )
        return
    # One database per lake and place, so that a name in it can only be ours, and is right.
    database = "dcplake_" + sha256(f"{lake.identity.lake_id} {lake.location}".encode()).hexdigest()
    folder = string((Path(tempfile.gettempdir()) / database[:24]).as_uri())
    database = f"{_SESSION_CATALOG}.{quoted(database[:24])}"
    lake.spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION {folder}")
    for table in tables:
        place = string(lake.location.path(table))
        lake.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {database}.{quoted(table)} USING delta LOCATION {place}"
        )
    lake.spark.sql(f"USE {database}")


def catalog_ends_with_session(spark: SparkSession) -> bool:
    """Whether the session's own catalog is in memory: what is made there touches nobody else."""
    return (
        spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory"
        and spark.conf.get(f"spark.sql.catalog.{_SESSION_CATALOG}", "") == DELTA_CATALOG
    )


def answer(spark: SparkSession, question: str) -> DataFrame:
    """Return the answer to one SQL statement.

    Raises:
        ConfigError: Spark does not understand it; the message is Spark's own, without its stack.

    """
    try:
        return spark.sql(question)
    except PySparkException as error:
        hint = ""
        if (error.getCondition() or "").startswith(_NO_TIME_TRAVEL):
            hint = (
                "; the plain names are views in this session, because its catalog outlives it: "
                "for time travel name the table delta.`<folder of the lake>/docs`"
            )
        raise ConfigError(f"SQL: {_first_lines(error)}{hint}") from None


def _first_lines(error: PySparkException) -> str:
    text = str(error).split("\n\nJVM stacktrace", 1)[0].strip()
    return text.split("; line", 1)[0] if len(text) > 2000 else text
