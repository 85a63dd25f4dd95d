"""Opens a lake for people: its tables under their plain names, its views, and the answers.

For a folder lake the tables are named in the session's own catalog, which writes nothing to the
lake; so ``docs VERSION AS OF 3`` works there as it does in a catalog schema.
"""

from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dcp.errors import ConfigError
from dcp.lake.run import lake_location, session
from dcp.lake.settings import Settings
from dcp.lake.sql import dotted, quoted, string
from dcp.lake.tables import (
    DOCS,
    LakeTables,
    ReplicaTable,
    open_lake,
    replica_exists,
    table_properties,
)
from dcp.lake.views import register_views


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


def replicas_in(lake: LakeTables) -> tuple[ReplicaTable, ...]:
    """Return the lake's replica tables: ``docs``, and the others once they were applied to."""
    rows = lake.spark.sql(
        f"SELECT DISTINCT applied.table FROM {lake.changes_sql} WHERE kind = 'applied'"
    ).collect()
    names = {row[0] for row in rows}
    if replica_exists(lake, DOCS):
        names.add(DOCS.name)
    found = []
    for name in sorted(names):
        properties = table_properties(lake.spark, lake.table_sql(name), f"{lake.location}: {name}")
        found.append(ReplicaTable(name, int(properties["dcplake.collectionId"])))
    return tuple(found)


def name_tables(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> None:
    """Make the lake's tables known by their plain names in this session."""
    if lake.location.schema is not None:
        lake.spark.sql(f"USE {dotted(lake.location.schema)}")
        return
    for table in ("changes", *(replica.name for replica in replicas)):
        place = string(lake.location.path(table))
        lake.spark.sql(f"DROP TABLE IF EXISTS {quoted(table)}")
        lake.spark.sql(f"CREATE TABLE {quoted(table)} USING delta LOCATION {place}")


def answer(spark: SparkSession, question: str) -> DataFrame:
    """Return the answer to one SQL statement.

    Raises:
        ConfigError: Spark does not understand it; the message is Spark's own, without its stack.

    """
    try:
        return spark.sql(question)
    except PySparkException as error:
        raise ConfigError(f"SQL: {_first_lines(error)}") from None


def _first_lines(error: PySparkException) -> str:
    text = str(error).split("\n\nJVM stacktrace", 1)[0].strip()
    return text.split("; line", 1)[0] if len(text) > 2000 else text
