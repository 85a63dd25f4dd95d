"""The tables of a lake: where they are, how they are made, and that they are ours.

A lake is a folder (a path or URI that Spark can write) or a catalog schema. Its identity is in the
table properties of ``changes`` (``dcplake.*``); each replica names the lake it belongs to.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dcp.errors import LakeError
from dcp.lake.horizon import RECORDED, Horizon
from dcp.lake.lock import local_root
from dcp.lake.round_record import RoundRecord
from dcp.lake.schema import AUDIT, CHANGES, REPLICA, spark_ddl
from dcp.lake.sql import dotted, quoted, string

FORMAT_VERSION: Final = 2

AUDIT_TABLE: Final = "undone"
"""What rollbacks took back, key by key (`dcp.lake.audit`)."""

DEFAULT_HORIZON_HOURS: Final = 7 * 24.0

_NAME_MAX: Final = 80
"""Characters of a scope's or a collection's name (251 at most) in the name of its table."""

_S3_SCHEMES: Final = ("s3", "s3a", "s3n")

_REPLICA_PROPERTY: Final = "dcplake.replica."

_CLEANED_ROUND: Final = "dcplake.cleanedRound"

_MISSING: Final = frozenset(
    {
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_NOT_FOUND",
        "PATH_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
    }
)

_REDACTED: Final = "*********(redacted)"
"""What Spark shows for a value that may be a secret, or has ``url`` in it or in its key."""


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """One replica table and the collection that it holds."""

    name: str
    collection_id: int


DOCS: Final = ReplicaTable("docs", 0)
"""The replica of the default collection."""


def replica_of(scope: str, collection: str, collection_id: int) -> ReplicaTable:
    """Return the replica table of a collection: ``docs__<scope>__<collection>__<id in hex>``.

    The default one has its own short name. The id keeps any two collections apart: those whose
    names run together (``a__b``/``c``, ``a``/``b__c``), those that differ in case only, and one
    that was dropped and made anew, which has a new id. So the names are there to be read, may be
    shortened, or lose what no catalog takes (``%``, ``-``).
    """
    if collection_id == DOCS.collection_id:
        return DOCS
    names = (re.sub(r"[^A-Za-z0-9_]", "_", name)[:_NAME_MAX] for name in (scope, collection))
    return ReplicaTable("__".join(("docs", *names, f"{collection_id:x}")), collection_id)


@dataclass(frozen=True, slots=True)
class LakeIdentity:
    """Which bucket a lake holds; fixed when the lake is made."""

    lake_id: str
    bucket: str
    bucket_uuid: str
    vbucket_count: int


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """Where a lake's tables are: exactly one of a folder and a catalog schema.

    A folder on this machine is made absolute, with ``~`` resolved, as its lock file's is.
    """

    root: str | None = None
    schema: str | None = None

    def __post_init__(self) -> None:
        """Reject both and neither, and resolve the folder."""
        if (self.root is None) == (self.schema is None):
            raise ValueError(
                f"lake location: found root {self.root!r} and schema {self.schema!r}, "
                "expected exactly one of them"
            )
        folder = None if self.root is None else local_root(self.root)
        if folder is not None and not str(self.root).startswith("file:"):
            object.__setattr__(self, "root", str(folder.absolute()))

    def __str__(self) -> str:
        """Name the place, for messages."""
        return self.root if self.root is not None else f"schema {self.schema}"

    def path(self, table: str) -> str:
        """Return the path of a table of a folder lake."""
        assert self.root is not None
        return f"{self.root.rstrip('/')}/{table}"

    def table_sql(self, table: str) -> str:
        """Return how SQL names a table."""
        if self.schema is not None:
            return f"{dotted(self.schema)}.{quoted(table)}"
        return f"delta.{quoted(self.path(table))}"


@dataclass(frozen=True, slots=True)
class LakeTables:
    """An open lake: a session, a place, and the identity that was found there.

    ``remembered_rounds`` is for `dcp.lake.round_record` alone.
    """

    spark: SparkSession
    location: LakeLocation
    identity: LakeIdentity
    remembered_rounds: dict[int, RoundRecord] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def changes_sql(self) -> str:
        """How SQL names the change log."""
        return self.location.table_sql("changes")

    def table_sql(self, table: str) -> str:
        """How SQL names a table of this lake."""
        return self.location.table_sql(table)


def create_lake(
    spark: SparkSession,
    location: LakeLocation,
    identity: LakeIdentity,
    *,
    horizon_hours: float = DEFAULT_HORIZON_HOURS,
) -> LakeTables:
    """Make the lake, or open the one that is there if it holds the same bucket.

    The horizon may be any time here, a second or less; of a lake that is there it stays as it is
    (`dcp.lake.retention.keep_retention` changes it).

    Two drivers may do this at once: one table is made, and both go on with its identity, which is
    then the winner's (``lake_id`` differs from the one given).

    Raises:
        LakeError: what is there is no lake, a lake of another bucket, or of another format.

    """
    horizon = Horizon.of_hours(horizon_hours)
    properties = horizon.properties() | {
        "delta.dataSkippingStatsColumns": "round,epoch,vbucket,kind,seqno,collection_id",
        "delta.enableDeletionVectors": "true",
        "dcplake.formatVersion": str(FORMAT_VERSION),
        "dcplake.lake": identity.lake_id,
        "dcplake.bucket": identity.bucket,
        "dcplake.bucketUuid": identity.bucket_uuid,
        "dcplake.vbuckets": str(identity.vbucket_count),
        RECORDED: horizon.recorded,
    }
    if location.root is not None:
        refuse_unsafe_store(spark, location.root)
    if location.schema is not None:
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {dotted(location.schema)}")
    # Rounds arrive in order, so files hold few rounds each; clustering keeps that after OPTIMIZE.
    _create(spark, location.table_sql("changes"), CHANGES, "round", properties)
    if location.schema is not None:
        detail = spark.sql(f"DESCRIBE DETAIL {location.table_sql('changes')}").collect()[0]
        refuse_unsafe_store(spark, detail["location"])
    lake = open_lake(spark, location)
    found = lake.identity
    for name in ("bucket", "bucket_uuid", "vbucket_count"):
        if getattr(found, name) != getattr(identity, name):
            raise LakeError(
                f"{location}: found a lake with {name} {getattr(found, name)!r}, expected "
                f"{getattr(identity, name)!r}; a lake holds one bucket, use another place"
            )
    return lake


def open_lake(spark: SparkSession, location: LakeLocation) -> LakeTables:
    """Open the lake at ``location``.

    Raises:
        LakeError: there is none, it is somebody else's table, or of another format version.

    """
    where = f"{location}: table changes"
    properties = table_properties(spark, location.table_sql("changes"), where)
    if "dcplake.lake" not in properties:
        raise LakeError(
            f"{where}: found a Delta table without the property dcplake.lake, expected a lake; "
            "it is somebody else's table and is left alone"
        )
    version = properties.get("dcplake.formatVersion", "")
    if version != str(FORMAT_VERSION):
        raise LakeError(
            f"{where}: found lake format {version!r}, expected {FORMAT_VERSION}; "
            "use the dcplake version that made it"
        )
    _require_columns(spark, location.table_sql("changes"), CHANGES, where)
    identity = LakeIdentity(
        properties["dcplake.lake"],
        properties.get("dcplake.bucket", ""),
        properties.get("dcplake.bucketUuid", ""),
        int(properties.get("dcplake.vbuckets", "0")),
    )
    return LakeTables(spark, location, identity)


def refuse_unsafe_store(spark: SparkSession, place: str) -> None:
    """Refuse S3 unless it was said how commits to it exclude each other: only then a fence holds.

    Delta's own log store for S3 is safe within one driver process only (Delta docs, "Storage
    configuration"); the others it knows have an atomic "put if absent".

    Raises:
        LakeError: ``place`` is on S3 and no log store is configured.

    """
    scheme = urlsplit(place).scheme
    if scheme not in _S3_SCHEMES:
        return
    keys = (f"spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class")
    if any(spark.conf.get(key, None) for key in keys):
        return
    raise LakeError(
        f"{place}: found no setting {keys[0]}, expected one: by default two drivers could commit "
        "the same version on S3. Set it to io.delta.storage.S3DynamoDBLogStore (with the jar "
        "delta-storage-s3-dynamodb), or to io.delta.storage.S3SingleDriverLogStore where nothing "
        "else will ever write to this lake"
    )


def find_lake(spark: SparkSession, location: LakeLocation) -> LakeTables | None:
    """Open the lake at ``location``; None where there is no table at all.

    Raises:
        LakeError: there is a table, and it is no lake of ours.

    """
    return open_lake(spark, location) if _exists(spark, location.table_sql("changes")) else None


def ensure_replica(
    lake: LakeTables, replica: ReplicaTable, *, horizon_hours: float = DEFAULT_HORIZON_HOURS
) -> None:
    """Make the replica table unless it is there.

    Raises:
        LakeError: a table of that name is there and is not this lake's replica.

    """
    table_sql = lake.table_sql(replica.name)
    ours = {
        "dcplake.lake": lake.identity.lake_id,
        "dcplake.collectionId": str(replica.collection_id),
    }
    properties = Horizon.of_hours(horizon_hours).properties() | {
        "delta.dataSkippingStatsColumns": "vbucket,key,seqno,modified_at",
        "delta.enableDeletionVectors": "true",
        **ours,
    }
    _create(lake.spark, table_sql, REPLICA, "vbucket, key", properties)
    where = f"{lake.location}: table {replica.name}"
    found = table_properties(lake.spark, table_sql, where)
    for name, expected in ours.items():
        if found.get(name) != expected:
            raise LakeError(
                f"{where}: found {name} {found.get(name)!r}, expected {expected!r}; "
                "it is not this lake's replica and is left alone"
            )
    _require_columns(lake.spark, table_sql, REPLICA, where)
    if replica != DOCS:
        _list_replica(lake, replica)


def ensure_audit(lake: LakeTables) -> None:
    """Make the table ``undone`` unless it is there.

    Raises:
        LakeError: a table of that name is there and is not this lake's.

    """
    table_sql = lake.table_sql(AUDIT_TABLE)
    ours = {"dcplake.lake": lake.identity.lake_id}
    _create(lake.spark, table_sql, AUDIT, "vbucket, key", ours)
    where = f"{lake.location}: table {AUDIT_TABLE}"
    found = table_properties(lake.spark, table_sql, where)
    if found.get("dcplake.lake") != lake.identity.lake_id:
        raise LakeError(
            f"{where}: found dcplake.lake {found.get('dcplake.lake')!r}, expected "
            f"{lake.identity.lake_id!r}; it is not this lake's and is left alone"
        )
    _require_columns(lake.spark, table_sql, AUDIT, where)


def audit_exists(lake: LakeTables) -> bool:
    """Whether a rollback was ever undone in this lake."""
    return _exists(lake.spark, lake.table_sql(AUDIT_TABLE))


def replicas_in(lake: LakeTables) -> tuple[ReplicaTable, ...]:
    """Return the lake's replica tables: ``docs`` first, then the others, by their ids.

    ``changes`` lists them in its properties from the moment they are made; of a dropped collection,
    too. One whose table somebody dropped is left out until it is made again.
    """
    listed = sorted(_listed_replicas(lake), key=lambda replica: replica.collection_id)
    return tuple(replica for replica in (DOCS, *listed) if replica_exists(lake, replica))


def _listed_replicas(lake: LakeTables) -> list[ReplicaTable]:
    properties = table_properties(lake.spark, lake.changes_sql, f"{lake.location}: table changes")
    return [
        ReplicaTable(key.removeprefix(_REPLICA_PROPERTY), int(value))
        for key, value in properties.items()
        if key.startswith(_REPLICA_PROPERTY)
    ]


def _list_replica(lake: LakeTables, replica: ReplicaTable) -> None:
    """Name a replica in the properties of ``changes``, in a key of its own: nothing is overwritten.

    That comes after the table was made, and is made up for by the next run if that one was killed
    between the two.
    """
    if replica not in _listed_replicas(lake):
        key, value = _REPLICA_PROPERTY + replica.name, str(replica.collection_id)
        lake.spark.sql(
            f"ALTER TABLE {lake.changes_sql} SET TBLPROPERTIES ({string(key)} = {string(value)})"
        )


def cleaned_round(lake: LakeTables, replica: ReplicaTable | None = None) -> int:
    """Return the newest round of which document rows may be missing in ``changes``; 0 if none is.

    Of all collections, or of one replica's: rows up to that round cannot be applied again to a
    table that does not have them. A collection that is newer than the cleaning lost none.
    """
    properties = table_properties(lake.spark, lake.changes_sql, f"{lake.location}: table changes")
    return int(properties.get(_cleaned_key(replica), "0"))


def record_cleaned_round(
    lake: LakeTables, replicas: Sequence[ReplicaTable], round_number: int
) -> None:
    """Note, before it is done, that document rows up to a round are removed. It never goes back."""
    newest = {each: max(round_number, cleaned_round(lake, each)) for each in (None, *replicas)}
    listed = ", ".join(
        f"{string(_cleaned_key(each))} = {string(str(number))}" for each, number in newest.items()
    )
    lake.spark.sql(f"ALTER TABLE {lake.changes_sql} SET TBLPROPERTIES ({listed})")


def _cleaned_key(replica: ReplicaTable | None) -> str:
    return _CLEANED_ROUND if replica is None else f"{_CLEANED_ROUND}.{replica.name}"


def replica_exists(lake: LakeTables, replica: ReplicaTable) -> bool:
    """Whether the replica table was made already."""
    return _exists(lake.spark, lake.table_sql(replica.name))


def _exists(spark: SparkSession, table_sql: str) -> bool:
    try:
        spark.sql(f"SHOW TBLPROPERTIES {table_sql}").collect()
    except PySparkException as error:
        if error.getCondition() in _MISSING:
            return False
        raise
    return True


def _create(
    spark: SparkSession,
    table_sql: str,
    schema: pa.Schema,
    cluster_by: str,
    properties: Mapping[str, str],
) -> None:
    listed = ", ".join(f"{string(key)} = {string(value)}" for key, value in properties.items())
    try:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {table_sql} ({spark_ddl(schema)}) USING delta "
            f"CLUSTER BY ({cluster_by}) TBLPROPERTIES ({listed})"
        ).collect()
    except PySparkException as error:
        # Another driver's creation came between; the check of what is there now decides.
        try:
            spark.sql(f"DESCRIBE DETAIL {table_sql}").collect()
        except PySparkException:
            raise LakeError(f"table {table_sql} cannot be made: {error}") from error


def table_properties(spark: SparkSession, table_sql: str, where: str) -> dict[str, str]:
    """Return a Delta table's properties; ``where`` names it in errors.

    Raises:
        LakeError: there is no Delta table, or it cannot be read.

    """
    try:
        # DESCRIBE DETAIL counts the table's files as well: a Spark job after each commit.
        shown = spark.sql(f"SHOW TBLPROPERTIES {table_sql}").collect()
        if all(row["value"] != _REDACTED for row in shown):
            return {row["key"]: row["value"] for row in shown}
        rows = spark.sql(f"DESCRIBE DETAIL {table_sql}").select("properties").collect()
    except PySparkException as error:
        if error.getCondition() in _MISSING:
            raise LakeError(f"{where}: found no Delta table there, expected a lake") from error
        raise LakeError(f"{where}: cannot be read: {error}") from error
    found: dict[str, str] = rows[0]["properties"]
    return found


def _require_columns(spark: SparkSession, table_sql: str, schema: pa.Schema, where: str) -> None:
    found = _columns(spark.sql(f"SELECT * FROM {table_sql} LIMIT 0").schema)
    expected = _columns(spark.createDataFrame([], spark_ddl(schema)).schema)
    if found != expected:
        raise LakeError(
            f"{where}: found the columns {', '.join(sorted(found - expected)) or '(none other)'}, "
            f"expected {', '.join(sorted(expected - found)) or 'no such columns'}"
        )


def _columns(schema: StructType) -> set[str]:
    return {f"{column.name} {column.dataType.simpleString()}" for column in schema}
