"""Makes and opens the tables of a lake, and checks that they belong to it.

A lake is a folder (a path or URI that Spark can write) or a catalog schema. The table properties
``dcplake.*`` of ``changes`` hold the lake's identity; each replica's properties name its lake.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa

from dcp.client.cluster_map import ClusterMap
from dcp.errors import ConfigError, LakeError
from dcp.lake.config.contracts import DEFAULT_COLLECTION
from dcp.lake.config.table_names import (
    AUDIT_TABLE,
    CHANGES_TABLE,
    CONTROL_TABLE,
    DOCS_TABLE,
    QUALITY_TABLE,
)
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.new_table import DELETION_VECTORS
from dcp.lake.store.sql import at_version, restore_sql
from dcp.lake.store.table import Table
from dcp.lake.tables.horizon import RECORDED, Horizon
from dcp.lake.tables.round_record import RoundRecord
from dcp.lake.tables.schema import (
    CHANGES,
    CHANGES_STATISTICS,
    FORMAT_VERSION,
    REPLICA,
    REPLICA_CLUSTERING,
    REPLICA_STATISTICS,
    TYPED,
    spark_type,
)
from dcp.records import plain, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LAKE: Final = "dcplake.lake"
"""The property of every table that names its lake."""


@dataclass(frozen=True, slots=True)
class LakeIdentity:
    """The bucket that a lake holds. It is fixed when the lake is made."""

    lake_id: Annotated[str, _LAKE]
    bucket: Annotated[str, "dcplake.bucket"] = ""
    bucket_uuid: Annotated[str, "dcplake.bucketUuid"] = ""
    vbucket_count: Annotated[int, "dcplake.vbuckets"] = 0
    cluster_uuid: Annotated[str, "dcplake.clusterUuid"] = ""
    """Empty if the server did not send it at that time; Couchbase before 7.6 does not."""

    def in_cluster(self, found: ClusterMap) -> "LakeIdentity":
        """Return the identity that the lake would have if it had the bucket of this map."""
        return replace(
            self,
            bucket_uuid=found.bucket_uuid,
            vbucket_count=found.vbucket_count,
            cluster_uuid=found.cluster_uuid,
        )

    def difference(self, other: "LakeIdentity") -> str:
        """Return the first field in which another bucket differs; empty if it is the same bucket.

        A cluster uuid that only one of them has makes no difference.
        """
        for name in ("bucket", "cluster_uuid", "bucket_uuid", "vbucket_count"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two and (name != "cluster_uuid" or (one and two)):
                return name
        return ""

    def require_same(self, found: "LakeIdentity", where: str) -> None:
        """Refuse another bucket than this one.

        Raises:
            LakeError: the name or cluster differs; or the bucket was created again, as its uuid or
                number of vbuckets shows. The message begins with ``where``.
        """
        match self.difference(found):
            case "":
                return
            case "bucket":
                told = (
                    f", found {found.bucket!r} (source.bucket): name the lake's bucket, or use "
                    "another lake (lake.root, --lake)"
                )
            case "cluster_uuid":
                told = (
                    f" of the cluster with uuid {self.cluster_uuid!r}, found the cluster with uuid "
                    f"{found.cluster_uuid!r}; it is another one: check source.seeds, or use "
                    "another lake for it"
                )
            case _:
                told = (
                    f" with uuid {self.bucket_uuid!r} and {self.vbucket_count} vbuckets, found "
                    f"uuid {found.bucket_uuid!r} and {found.vbucket_count}; the bucket was created "
                    "again, use another lake for it"
                )
        raise LakeError(f"{where}: this lake holds bucket {self.bucket!r}{told}")


_LEDGERS: Final[Mapping[str, Sequence[str]]] = {
    AUDIT_TABLE: REPLICA_CLUSTERING,
    CONTROL_TABLE: (),
    QUALITY_TABLE: ("checked_at",),
}
"""By table, the columns that it is clustered by."""
LEDGERS: Final = tuple(_LEDGERS)
"""Tables that are made on demand and only grow."""

DEFAULT_HORIZON_HOURS: Final = 7 * 24.0

_NAME_MAX: Final = 80
"""So many characters of a scope's or collection's name (at most 251) go into a table's name."""

_REPLICA_PROPERTY: Final = "dcplake.replica."

_NODES: Final = "dcplake.nodes"
"""The property that holds `LakeTables.nodes`."""

_CLEANED_ROUND: Final = "dcplake.cleanedRound"


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    name: str
    collection_id: int
    collection: str = field(default="", compare=False)
    """``scope.collection``, also after a drop; the table's name may be shortened."""

    @property
    def setting_names(self) -> tuple[str, str]:
        """Its names in settings: the scope's, which others share, and ``scope.collection``."""
        return self.collection.partition(".")[0], self.collection


DOCS: Final = ReplicaTable(DOCS_TABLE, 0, DEFAULT_COLLECTION)


def replica_of(scope: str, collection: str, collection_id: int) -> ReplicaTable:
    """Return the replica table of a collection: ``docs__<scope>__<collection>__<id in hex>``.

    The default collection's table is ``docs``. The id makes the name unique; the names are for
    readers. They may be shortened, and lose characters that no catalog allows (``%``, ``-``).
    """
    if collection_id == DOCS.collection_id:
        return DOCS
    # Names alone are ambiguous: `a__b`/`c` and `a`/`b__c` give the same text, names may differ in
    # case only, and a collection may be dropped and created again.
    readable = (re.sub(r"[^A-Za-z0-9_]", "_", name)[:_NAME_MAX] for name in (scope, collection))
    name = "__".join((DOCS_TABLE, *readable, f"{collection_id:x}"))
    return ReplicaTable(name, collection_id, f"{scope}.{collection}")


@dataclass(frozen=True, slots=True)
class LakeTables:
    store: LakeStore
    identity: LakeIdentity
    nodes: str = ""
    """A connection string of the data nodes that a driver used last, read when the lake opens."""
    remembered_rounds: dict[int, RoundRecord] = field(
        default_factory=dict, repr=False, compare=False
    )
    """A cache for `dcp.lake.change_log.round_queries` only."""

    @property
    def spark(self) -> "SparkSession":
        return self.store.spark

    @property
    def location(self) -> LakeLocation:
        return self.store.location

    @property
    def changes(self) -> Table:
        return self.table(CHANGES_TABLE)

    def read_once(self) -> AbstractContextManager[None]:
        return self.store.cached_reads.read_once()

    def table(self, name: str) -> Table:
        return self.store.table(name)

    @property
    def changes_sql(self) -> str:
        return self.changes.sql

    def table_sql(self, table: str, version: int | None = None) -> str:
        return at_version(self.table(table).sql, version)

    def beside(self) -> "LakeTables":
        """Return the same lake for another thread. `LakeStore.end_beside` releases it."""
        return replace(self, store=self.store.beside())


def create_lake(
    store: LakeStore,
    identity: LakeIdentity,
    *,
    horizon_hours: float = DEFAULT_HORIZON_HOURS,
    deletion_vectors: bool = True,
    nodes: str = "",
) -> LakeTables:
    """Make the lake, or open an existing one of the same bucket.

    An existing lake keeps its horizon (`dcp.lake.maintain.horizon_guard.keep_retention` changes
    it). If two drivers call this at once, one makes the table, and both use its identity. The
    ``lake_id`` may therefore differ from the given one.

    Raises:
        LakeError: the location has a foreign table, a lake of another bucket, or one of another
            format; or it is inside another table; or the store overwrites existing files.
        ConfigError: the existing lake and the settings disagree about deletion vectors; or the lake
            is on S3, and the session may overwrite other commits.
    """
    with store.cached_reads.read_once():
        store.prepare()
        changes = store.table(CHANGES_TABLE)
        if not changes.exists():
            store.location.refuse_location_in_table()
            horizon = Horizon.of_hours(horizon_hours)
            properties = horizon.properties() | {
                "delta.dataSkippingStatsColumns": ",".join(CHANGES_STATISTICS),
                **_deletion_vectors(deletion_vectors),
                **({_NODES: nodes} if nodes else {}),
                "dcplake.formatVersion": str(FORMAT_VERSION),
                **{name: str(told) for name, told in plain(identity).items() if told != ""},
                RECORDED: horizon.recorded,
            }
            # Rounds arrive in order, so each file has few. Clustering makes OPTIMIZE keep that.
            changes.create(CHANGES, ["round"], properties)
        lake = open_lake(store)
        lake.identity.require_same(identity, str(store.location))
        _require_deletion_vectors(lake.changes, lake.changes.properties(), deletion_vectors)
        store.prepare()  # a catalog knows the location of a new table only at this point
        return lake


def _deletion_vectors(is_wanted: bool) -> dict[str, str]:
    # If unwanted, the property must be absent: even "false" enables the table feature.
    return {DELETION_VECTORS: "true"} if is_wanted else {}


def _require_deletion_vectors(
    table: Table, properties: Mapping[str, str], are_wanted: bool
) -> None:
    """Raise ConfigError if the table differs: Delta cannot take a table feature away."""
    had = properties.get(DELETION_VECTORS) == "true"
    if had != are_wanted:
        words = ("without", "with")
        raise ConfigError(
            f"lake.deletion_vectors: found {str(are_wanted).lower()}, but {table.where} was made "
            f"{words[had]} deletion vectors; expected {str(had).lower()}, or the location of a new "
            "lake"
        )


def open_lake(store: LakeStore) -> LakeTables:
    """Open the lake of a store. It starts Spark only if nothing else can read the lake.

    Raises:
        LakeError: the location has no lake, a foreign table, or a lake of another format version.
    """
    with store.cached_reads.read_once():
        return _open(store)


def _open(store: LakeStore) -> LakeTables:
    changes = store.table(CHANGES_TABLE)
    where, properties = changes.where, changes.properties()
    if _LAKE not in properties:
        raise LakeError(
            f"{where}: found a Delta table without the property {_LAKE}, expected a lake; "
            "it is somebody else's table and is left alone"
        )
    version = properties.get("dcplake.formatVersion", "")
    if version != str(FORMAT_VERSION):
        raise LakeError(
            f"{where}: found lake format {version!r}, expected {FORMAT_VERSION}; "
            "set lake.root to a new location and run again: that run reads the bucket anew"
        )
    _require_columns(changes, CHANGES)
    return LakeTables(store, read(LakeIdentity, properties), properties.get(_NODES, ""))


def _require_columns(table: Table, expected: pa.Schema, also: Collection[str] = ()) -> None:
    found = {each.name: each.type for each in table.columns() if each.name not in also}
    wanted = {each.name: each.type for each in expected}

    def told(columns: Mapping[str, pa.DataType]) -> str:
        names = sorted(other & columns.keys())
        return ", ".join(f"{name} {spark_type(columns[name]).lower()}" for name in names)

    if other := {name for name in found | wanted if found.get(name) != wanted.get(name)}:
        raise LakeError(
            f"{table.where}: found the columns {told(found) or '(none other)'}, "
            f"expected {told(wanted) or 'no such columns'}; restore "
            "the table to an earlier version (DESCRIBE HISTORY lists them): "
            f"{restore_sql(table.sql, '…')}"
        )


def find_lake(store: LakeStore) -> LakeTables | None:
    """Open the lake of a store; None if it has no table.

    Raises:
        LakeError: the table is not a lake of this format.
    """
    with store.cached_reads.read_once():
        return _open(store) if store.table(CHANGES_TABLE).exists() else None


def ensure_replicas(
    lake: LakeTables,
    replicas: Sequence[ReplicaTable],
    *,
    horizon_hours: float = DEFAULT_HORIZON_HOURS,
    deletion_vectors: bool = True,
) -> None:
    """Make the missing replica tables.

    Raises:
        LakeError: a table of such a name is not a replica of this lake.
        ConfigError: a table and the settings disagree about deletion vectors.
    """
    made = Horizon.of_hours(horizon_hours).properties() | {
        "delta.dataSkippingStatsColumns": ",".join(REPLICA_STATISTICS),
        **_deletion_vectors(deletion_vectors),
    }

    def ours(replica: ReplicaTable) -> dict[str, str]:
        return {
            _LAKE: lake.identity.lake_id,
            "dcplake.collectionId": str(replica.collection_id),
        }

    def create(replica: ReplicaTable) -> None:
        lake.table(replica.name).create(REPLICA, REPLICA_CLUSTERING, made | ours(replica))

    def check(replica: ReplicaTable) -> None:
        table = lake.table(replica.name)
        found = table.properties()
        for name, expected in ours(replica).items():
            if found.get(name) != expected:
                raise LakeError(
                    f"{table.where}: found {name} {found.get(name)!r}, expected {expected!r}; "
                    "it is not this lake's replica table and is left alone"
                )
        _require_deletion_vectors(table, found, deletion_vectors)
        _require_columns(table, REPLICA, also=TYPED.names)

    # Each commit clears the cached reads, so all checks come after the last commit.
    lake.store.for_each(create, replicas)
    lake.store.for_each(check, replicas)
    _list_replicas(lake, replicas)


def ensure_ledger(lake: LakeTables, name: str, columns: pa.Schema) -> Table:
    """Return a table of `LEDGERS`, and make it if it is missing. Any Delta writer may append.

    Raises:
        LakeError: a table of that name belongs to another lake.
    """
    table, properties = lake.table(name), {_LAKE: lake.identity.lake_id}
    table.create(columns, _LEDGERS[name], properties)
    found = table.properties()
    if found.get(_LAKE) != lake.identity.lake_id:
        raise LakeError(
            f"{table.where}: found {_LAKE} {found.get(_LAKE)!r}, expected "
            f"{lake.identity.lake_id!r}; it is not this lake's and is left alone"
        )
    _require_columns(table, columns)
    return table


def replicas_in(lake: LakeTables) -> tuple[ReplicaTable, ...]:
    """Return the lake's existing replica tables: ``docs`` first, then the others by id.

    They include tables of dropped collections, but not tables that somebody deleted.
    """
    return _existing(lake, known_replicas(lake))


def refuse_lost_replica(lake: LakeTables, wanted: Collection[ReplicaTable] | None = None) -> None:
    """Raise LakeError if a replica (of ``wanted``, if given) was made but is missing.

    Call it for a lake with rounds: before the first round there may be no replica.
    """
    known = [each for each in known_replicas(lake) if wanted is None or each in wanted]
    there = set(_existing(lake, known))
    for each in known:
        if each not in there:
            raise LakeError(
                f"{lake.table(each.name).where}: found no Delta table there, expected the "
                "replica table; put it back from a copy, or delete its folder if there is any, and "
                "the next run creates it again"
            )


def _existing(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> tuple[ReplicaTable, ...]:
    exist = lake.store.for_each(lambda each: lake.table(each.name).exists(), replicas)
    return tuple(each for each, is_there in zip(replicas, exist, strict=True) if is_there)


def known_replicas(lake: LakeTables) -> tuple[ReplicaTable, ...]:
    """Return all replica tables that the lake has made, including deleted ones."""
    return (DOCS, *sorted(_listed_replicas(lake), key=lambda each: each.collection_id))


def _listed_replicas(lake: LakeTables) -> list[ReplicaTable]:
    found = []
    for key, value in lake.changes.properties().items():
        if key.startswith(_REPLICA_PROPERTY):
            collection_id, _, collection = value.partition(" ")
            name = key.removeprefix(_REPLICA_PROPERTY)
            found.append(ReplicaTable(name, int(collection_id), collection))
    return found


def _list_replicas(lake: LakeTables, replicas: Iterable[ReplicaTable]) -> None:
    # Each replica has its own key, so two drivers overwrite nothing. The tables exist already: if
    # a run dies in between, the next one lists them.
    listed = {DOCS, *_listed_replicas(lake)}
    named = {
        _REPLICA_PROPERTY + each.name: f"{each.collection_id} {each.collection}"
        for each in replicas
        if each not in listed
    }
    if named:
        lake.changes.set_properties(named)


def remember_nodes(lake: LakeTables, nodes: str) -> None:
    """Store a connection string of data nodes: drivers ask them if no seed node answers."""
    lake.changes.set_properties({_NODES: nodes})


def cleaned_round(lake: LakeTables, replica: ReplicaTable | None = None) -> int:
    """Return the newest round whose document rows ``changes`` may lack; 0 if it lacks none.

    Without ``replica`` it covers all collections. Rows up to that round cannot be applied again to
    a table that lacks them. A collection that is newer than the cleaning has lost none.
    """
    return max(_cleanings(lake, replica).values(), default=0)


def record_cleaned_round(
    lake: LakeTables, replicas: Sequence[ReplicaTable], round_number: int
) -> None:
    """Note that document rows up to a round will be removed. Call it before the removal.

    The noted round never decreases.
    """
    whose = [_cleaned_key(each) for each in replicas or (None,)]  # None: the lake lost its tables
    older = (
        key
        for each in replicas
        for key, number in _cleanings(lake, each).items()
        if number < round_number
    )
    # Each round has its own property, and the largest counts. A paused process that notes an older
    # round later therefore changes nothing.
    noted = {f"{key}.{round_number}": str(round_number) for key in whose}
    lake.changes.set_properties({**dict.fromkeys(older), **noted})


def _cleanings(lake: LakeTables, replica: ReplicaTable | None) -> dict[str, int]:
    properties = lake.changes.properties()
    begin = f"{_cleaned_key(replica)}."
    return {key: int(value) for key, value in properties.items() if f"{key}.".startswith(begin)}


def _cleaned_key(replica: ReplicaTable | None) -> str:
    return _CLEANED_ROUND if replica is None else f"{_CLEANED_ROUND}.{replica.name}"
