"""Makes a lake's tables and views known under their plain names in a session.

The tables of a lake in a folder get a database of their own, if the session's catalog ends with the
session; so ``docs VERSION AS OF 3`` works as in a catalog schema. A catalog that outlives the
session (Hive, Unity) belongs to others: there the names are temporary views. dcplake never drops or
replaces what somebody else made, except temporary views of the same names in the same session.
"""

import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.transaction import session_settings_for_a_while
from dcp.lake.config.required_spark import REQUIRED_SPARK
from dcp.lake.config.table_names import CHANGES_TABLE, CONTROL_TABLE, QUALITY_TABLE
from dcp.lake.query.views import register_views
from dcp.lake.spark.session_settings import DELTA_CATALOG
from dcp.lake.store.sql import dotted, quoted, string
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, replicas_in

_SESSION_CATALOG: Final = "spark_catalog"

_NAMING: Final = threading.Lock()
"""Held while a user's session has other settings. Two threads would restore each other's."""


def show_for_queries(lake: LakeTables) -> LakeTables:
    """Name the lake's tables and make its views in its own session; return the lake."""
    replicas = replicas_in(lake)
    name_tables(lake, replicas)
    register_views(lake, replicas)
    return lake


def show_to_user(lake: LakeTables, user: SparkSession) -> LakeTables:
    """Do the same in a user's session by temporary views; return the lake in that session.

    The session has the settings of `REQUIRED_SPARK` meanwhile, which a view keeps. Afterwards it
    has its own again.
    """
    replicas = replicas_in(lake)
    theirs = replace(lake, store=SparkStore(lambda: user, lake.location))
    with _NAMING, session_settings_for_a_while(user, REQUIRED_SPARK):
        name_tables_in_views(theirs, replicas)
        register_views(theirs, replicas, temporary=True)
    return theirs


def name_tables(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> None:
    """Make the lake's tables known by their plain names, in the session's current schema."""
    if lake.location.schema is not None:
        lake.spark.sql(f"USE {dotted(lake.location.schema)}")
        return
    if not catalog_ends_with_session(lake.spark):
        name_tables_in_views(lake, replicas)
        return
    # One database per lake and location, so that a name in it can only be ours, and is right.
    database = "dcplake_" + sha256(f"{lake.identity.lake_id} {lake.location}".encode()).hexdigest()
    folder = Path(tempfile.gettempdir()) / database[:24]
    database = f"{_SESSION_CATALOG}.{quoted(database[:24])}"
    location = string(f"file:{folder}")  # no URI: Spark would take its %20 for a name
    lake.spark.sql(f"CREATE DATABASE IF NOT EXISTS {database} LOCATION {location}")
    with suppress(OSError):  # Spark makes the folder, but the tables are in the lake's
        folder.rmdir()
    for table in _shown_tables(lake, replicas):
        lake.table(table).register(f"{database}.{quoted(table)}")
    lake.spark.sql(f"USE {database}")


def name_tables_in_views(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> None:
    """Name the tables by temporary views, which leave the session's schema and catalog
    unchanged.
    """
    for table in _shown_tables(lake, replicas):
        lake.spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {quoted(table)} AS "
            f"SELECT * FROM {lake.table_sql(table)}"
        )


def _shown_tables(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> list[str]:
    others = (each for each in (CONTROL_TABLE, QUALITY_TABLE) if lake.table(each).exists())
    return [CHANGES_TABLE, *(replica.name for replica in replicas), *others]


def catalog_ends_with_session(spark: SparkSession) -> bool:
    """Return whether the session's catalog is in memory, so that its names affect nobody else."""
    return (
        spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory"
        and spark.conf.get(f"spark.sql.catalog.{_SESSION_CATALOG}", "") == DELTA_CATALOG
    )
