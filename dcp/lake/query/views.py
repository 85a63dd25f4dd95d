"""Registers the views of a lake: documents, pending changes, positions, rounds.

In a catalog schema the views are permanent; for a folder they are temporary views of the session.
``rounds`` reads Delta's history, which no permanent view can read: it is always a view of the
session, and shows the rounds up to its registration. ``pending_changes`` knows the applies up to
its registration, and later ones after a round has listed them.

    documents, documents_variant, docs_live    for ``docs``; with the suffix ``__scope__collection``
        for the replica of another collection
    documents_typed, docs_NAME                 for a replica with typed columns: those columns, and
        the elements of an array (``view`` in its contract)
    pending_changes, positions, rounds, epochs, rollbacks, row_history, stale_vbuckets,
    dropped_collections, quarantine

``stale_vbuckets``, ``quarantine``, ``documents_typed`` and ``docs_NAME`` also show what was true at
their registration.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from dcp.lake.change_log.applied import replica_status, shown_stale
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.epochs import epochs_sql
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.query.views_sql import (
    docs_live_sql,
    documents_sql,
    documents_typed_sql,
    documents_variant_sql,
    dropped_collections_sql,
    elements_sql,
    pending_changes_sql,
    positions_sql,
    quarantine_sql,
    rollbacks_sql,
    row_history_sql,
    stale_vbuckets_sql,
    vbucket_of_sql,
)
from dcp.lake.store.sql import dotted, quoted
from dcp.lake.tables.applied_version import BEGINNING
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable
from dcp.lake.tables.round_record import VbucketReport
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.lake.tables.typed_columns import DOC, arrays_of, has_names_twice
from dcp.records import stored_fields


def register_views(
    lake: LakeTables, replicas: Sequence[ReplicaTable] = (DOCS,), *, temporary: bool = False
) -> list[str]:
    """Make or renew all views and the function ``vbucket_of(key)``; return the views' names.

    With ``temporary``, the views of a lake in a catalog schema are temporary, too. The replica
    tables must exist (`dcp.lake.tables.lake_tables.ensure_replicas`).
    """
    views = lake_views(lake, replicas)
    for name, query in views.items():
        if lake.location.schema is not None and not temporary:
            view = f"{dotted(lake.location.schema)}.{quoted(name)}"
            lake.spark.sql(f"CREATE OR REPLACE VIEW {view} AS {query}")
        else:
            lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(name)} AS {query}")
    rounds(lake).createOrReplaceTempView("rounds")
    lake.spark.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION vbucket_of(key STRING) RETURNS INT "
        f"RETURN {vbucket_of_sql(lake.identity.vbucket_count)}"
    )
    return [*views, "rounds"]


def lake_views(lake: LakeTables, replicas: Sequence[ReplicaTable]) -> dict[str, str]:
    views: dict[str, str] = {}
    typed: dict[str, str] = {}
    for replica in replicas:
        table_sql = lake.table_sql(replica.name)
        suffix = replica.name.removeprefix(DOCS.name)
        views["documents" + suffix] = documents_sql(table_sql)
        views["documents_variant" + suffix] = documents_variant_sql(table_sql)
        views["docs_live" + suffix] = docs_live_sql(table_sql, lake.changes_sql, replica)
        columns = lake.table(replica.name).columns()
        if DOC in columns.names:
            typed[replica.name] = table_sql
            views |= _typed_views(lake, replica, columns.field(DOC).type, suffix)
    statuses = {each.name: replica_status(lake, each) for each in replicas}
    current = {name: status.current for name, status in statuses.items()}
    current = current or {DOCS.name: BEGINNING}  # no table yet, or any more: all is pending
    views["pending_changes"] = pending_changes_sql(lake.changes_sql, replicas or (DOCS,), current)
    views["positions"] = positions_sql(lake.changes_sql)
    views["epochs"] = epochs_sql(lake.changes_sql)
    views["row_history"] = row_history_sql(lake.changes_sql)
    views["dropped_collections"] = dropped_collections_sql(lake.changes_sql, replicas)
    audit = lake.table(AUDIT_TABLE)
    views["rollbacks"] = rollbacks_sql(audit.sql if audit.exists() else None)
    views["quarantine"] = quarantine_sql(typed)
    newest = states_at(lake, latest_round(lake))
    shown = {name: shown_stale(status, newest) for name, status in statuses.items()}
    views["stale_vbuckets"] = stale_vbuckets_sql(lake.changes_sql, shown)
    return views


def _typed_views(
    lake: LakeTables, replica: ReplicaTable, document: pa.StructType, suffix: str
) -> dict[str, str]:
    if has_names_twice(document):  # Spark cannot choose one of them
        return {}
    table = lake.table(replica.name)
    views = {"documents_typed" + suffix: documents_typed_sql(table.sql, document)}
    for name, steps in arrays_of(table.properties()).items():
        if (elements := elements_sql(table.sql, document, steps)) is not None:
            views[f"{DOCS.name}_{name}{suffix}"] = elements
    return views


def rounds(lake: LakeTables) -> DataFrame:
    """Return the rounds in the history: number, version, time, size, vbuckets.

    ``rows`` counts documents, ``bytes`` their bytes on the wire, as a run reports them.
    ``stored_bytes`` is the commit's size. ``vbuckets`` counts vbuckets that brought a document.
    """
    commits = [
        (
            commit.round,
            commit.version,
            commit.time,
            int(commit.metrics.get("numOutputBytes", "0")),
        )
        for commit in history(lake.changes, WHOLE)
        if commit.round is not None
    ]
    frame = lake.spark.createDataFrame(
        commits, "round BIGINT, version BIGINT, time TIMESTAMP, stored_bytes BIGINT"
    )
    names = {attribute: name for attribute, name, _ in stored_fields(VbucketReport)}

    def total_of(attribute: str) -> str:
        return f"sum(CAST(get_json_object(detail, '$.{names[attribute]}') AS BIGINT))"

    told = lake.spark.sql(
        f"SELECT round, {total_of('rows')} AS rows, {total_of('frame_bytes')} AS bytes, "
        "count_if(position.last_data_round = round) AS vbuckets "
        f"FROM {lake.changes_sql} WHERE {is_kind(RowKind.POSITION, RowKind.STATUS)} GROUP BY round"
    )
    columns = ("round", "version", "time", "rows", "bytes", "stored_bytes", "vbuckets")
    return frame.join(told, "round", "left").select(*columns).orderBy("round")
