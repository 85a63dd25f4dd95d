"""Builds the SQL of the lake's views. No Spark.

The views find the rounds that they need in the log, so a permanent view stays right. Views of keys
begin with key and document, and end with the columns that order the history.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa

from dcp.lake.adapters.apply_sql import (
    LOG_COLUMNS,
    REFERENCE_SQL,
    newest_references_sql,
    newest_rows_sql,
    touched_sql,
)
from dcp.lake.change_log.collection_events import (
    IS_EVENT_SQL,
    ends_documents_sql,
    kept_sql,
    undone_by_sql,
)
from dcp.lake.change_log.epochs import IS_FORK_SQL, dead_by_sql
from dcp.lake.change_log.system_event_detail import IS_DROP_SQL
from dcp.lake.config.contracts import same_name_key
from dcp.lake.config.json_paths import FieldName, Step
from dcp.lake.receive.keys import ESCAPE_PREFIX
from dcp.lake.store.log_slice import Role
from dcp.lake.store.sql import integer_list, quoted, string
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.lake_tables import ReplicaTable
from dcp.lake.tables.schema import (
    AUDIT,
    ITEM_KINDS,
    POSITION,
    REPLICA,
    ROW_COLUMNS,
    VIOLATION,
    RowKind,
    is_kind,
    spark_types,
)
from dcp.lake.tables.typed_columns import DOC, VIOLATIONS
from dcp.wire.vocabulary import ALL_DATATYPE_BITS, Datatype

VARIANT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Spark parses no larger text into a VARIANT."""

_LAYERS: Final = int(Datatype.SNAPPY | Datatype.XATTR)

AS_SENT_SQL: Final = "datatype > 1"
"""True for a value that could not be decoded and is stored as it was sent
(`dcp.lake.tables.schema`).
"""

_TEXT: Final = "try_validate_utf8(CAST(value AS STRING))"
_NULL_REASON: Final = f"""CASE WHEN document IS NOT NULL THEN NULL
       WHEN datatype > {ALL_DATATYPE_BITS} THEN 'unknown datatype'
       WHEN datatype & {_LAYERS} = {_LAYERS} THEN 'bad snappy or xattrs'
       WHEN datatype & {_LAYERS} = {int(Datatype.SNAPPY)} THEN 'bad snappy'
       WHEN datatype & {_LAYERS} = {int(Datatype.XATTR)} THEN 'bad xattrs'
       WHEN value IS NULL OR octet_length(value) = 0 THEN 'empty'
       WHEN {_TEXT} IS NULL THEN 'not UTF-8'
       WHEN octet_length(value) > {VARIANT_BYTES_MAX} THEN 'too large'
       WHEN get_json_object({_TEXT}, '$') IS NULL THEN 'no JSON that Spark reads'
       ELSE 'duplicate keys' END AS document_null_reason"""
_QUARANTINE: Final = pa.schema(
    [
        REPLICA.field("key"),
        *VIOLATION,
        ("table", pa.string()),
        *(REPLICA.field(name) for name in ("vbucket", "seqno")),
    ]
)
_HISTORY: Final = "vbucket, seqno, vb_uuid, epoch"
_FACTS: Final = "expiry, flags, datatype, key_bytes, cas, rev"
"""What a replica and ``changes`` tell of a document beside its value."""
_BOOKKEEPING: Final = f"{_FACTS}, {_HISTORY}"
_METADATA: Final = (
    f"modified_at, from_json(xattrs, 'MAP<STRING, STRING>') AS xattrs, {_BOOKKEEPING}"
)
_OF_ELEMENTS: Final = ("key", "modified_at", "vbucket", "seqno")
_ROW: Final = f"key, value, modified_at, xattrs, {_BOOKKEEPING}"
"""A replica's own columns, in the order of views."""
_TAKEN_BACK: Final = ("key", "before", "after")
_ROLLBACKS: Final = pa.schema(
    [
        *map(AUDIT.field, _TAKEN_BACK),
        *(each for each in AUDIT if each.name not in _TAKEN_BACK),
    ]
)


def documents_sql(table_sql: str) -> str:
    """Return the documents with their JSON as text. A column gives the reason for each NULL.

    The server sets the JSON bit after it has parsed a value. Without the bit the view parses the
    text.
    """
    text = (
        f"IF(datatype = {int(Datatype.JSON)} OR try_parse_json({_TEXT}) IS NOT NULL, {_TEXT}, NULL)"
    )
    return _documents_sql(table_sql, text)


def documents_variant_sql(table_sql: str) -> str:
    """Return the documents as VARIANT. A column gives the reason for each NULL."""
    return _documents_sql(table_sql, f"try_parse_json({_TEXT})")


def _documents_sql(table_sql: str, document: str) -> str:
    """Return the documents, decoded ones also in another form.

    ``xattrs`` maps names to values: strings as they are, others as JSON.
    """
    return f"""
SELECT key, document, {_NULL_REASON}, value, {_METADATA}
FROM (SELECT *, IF({AS_SENT_SQL}, NULL, {document}) AS document FROM {table_sql})"""


def documents_typed_sql(table_sql: str, document: pa.StructType) -> str:
    """Return the documents of a table with typed columns: a column for each field of ``doc``.

    A field with the name of another column of the view appears as ``doc_name``.
    """
    fields = _fields(document, DOC, ROW_COLUMNS)
    return f"SELECT key, {fields}{VIOLATIONS}, value, {_METADATA} FROM {table_sql}"


def _fields(kind: pa.StructType, struct_sql: str, others: Collection[str]) -> str:
    """Return the columns of a struct's fields, each with a comma, beside other columns."""
    taken = {*others, *(same_name_key(each.name) for each in kind)}
    columns: list[str] = []
    for each in kind:
        shown = each.name
        if same_name_key(shown) in others:
            while same_name_key(shown) in taken:
                shown = f"{DOC}_{shown}"
            taken.add(same_name_key(shown))
        columns.append(f"{struct_sql}.{quoted(each.name)} AS {quoted(shown)}, ")
    return "".join(columns)


def elements_sql(table_sql: str, document: pa.StructType, steps: Sequence[Step]) -> str | None:
    """Return the elements of an array in ``doc``, a row for each; None if there is no such array.

    ``position`` counts from 0. For an array inside arrays, their positions come before it, each
    named by its field: ``orders_position``.
    """
    kind: pa.DataType = document
    outer, field, views = DOC, "", ""
    positions: list[str] = []
    for step in steps:
        if isinstance(step, FieldName):
            if not pa.types.is_struct(kind) or kind.get_field_index(step.name) < 0:
                return None
            kind, field = kind.field(step.name).type, step.name
            outer += f".{quoted(step.name)}"
            continue
        if not pa.types.is_list(kind):
            return None
        kind = kind.value_type
        level = len(positions)
        positions.append(f"{field}_position" if level == 0 else f"{field}_position_{level + 1}")
        views += (
            f"\nLATERAL VIEW posexplode({outer}) AS {quoted(f'at_{level}')}, "
            f"{quoted(f'element_{level}')}"
        )
        outer = quoted(f"element_{level}")
    positions[-1:] = ["position"]
    told = "".join(
        f"{quoted(f'at_{level}')} AS {quoted(name)}, " for level, name in enumerate(positions)
    )
    others = {*map(same_name_key, positions), *_OF_ELEMENTS}
    is_object = pa.types.is_struct(kind)
    fields = _fields(kind, outer, others) if is_object else f"{outer} AS element, "
    end = ", ".join(_OF_ELEMENTS[1:])
    return f"SELECT key, {told}{fields}{end} FROM {table_sql}{views}"


def quarantine_sql(tables: Mapping[str, str]) -> str:
    """Return the values that do not fit the contracts: a row for each document and path.

    ``tables`` maps the names of tables with typed columns to their SQL names.
    """
    parts = [
        f"SELECT key, each.path, each.found, each.expected, {string(name)} AS table, vbucket, seqno"
        f" FROM {table_sql} LATERAL VIEW explode(violations) AS each"
        for name, table_sql in tables.items()
    ]
    return "\nUNION ALL ".join(parts) or _no_rows(_QUARANTINE)


def positions_sql(changes_sql: str) -> str:
    fields = ", ".join(f"position.{quoted(field.name)}" for field in POSITION)
    return f"""
SELECT round, vbucket, epoch, {fields}
FROM {changes_sql}
WHERE {is_kind(RowKind.POSITION)} AND round = {_newest_round(changes_sql)}"""


def pending_changes_sql(
    changes_sql: str, replicas: Sequence[ReplicaTable], current: Mapping[str, AppliedVersion]
) -> str:
    """Return the live rows of the log that their replica table lacks.

    ``state`` is ``complete`` if an apply may publish the row, ``incomplete`` if the row waits for
    the end of its snapshot. The log lists an apply only with the next round, so ``current`` gives
    each table's present round. A table holds no live row of a stale vbucket.
    """
    branches = [
        f"""
SELECT c.key, c.value, c.kind,
  CASE WHEN c.seqno <= b.high THEN 'complete' ELSE 'incomplete' END AS state,
  {string(replica.name)} AS table, c.xattrs, {_FACTS}, c.round, c.vbucket, c.seqno, c.vb_uuid,
  c.epoch
{_live_rows(changes_sql, replica)} AND NOT EXISTS (
    SELECT 1 FROM {changes_sql} p
    WHERE p.{is_kind(RowKind.POSITION)} AND p.round = greatest(
        {current[replica.name].to_round}, {_newest_apply(changes_sql, replica, "to_round")})
      AND p.vbucket NOT IN ({integer_list([-1, *sorted(current[replica.name].stale)])})
      AND p.vbucket = c.vbucket AND p.epoch >= c.epoch AND p.position.complete_seqno >= c.seqno)"""
        for replica in replicas
    ]
    return "\nUNION ALL".join(branches)


def docs_live_sql(table_sql: str, changes_sql: str, replica: ReplicaTable) -> str:
    """Return the replica overlaid with the complete changes that no apply has published yet.

    A complete flush or drop ends all rows of table and overlay at lower seqnos. The overlay starts
    at the ``log_from_round`` of the newest apply that the log lists, so it may repeat changes that
    the table has. A repeated change is the newest of its key, so the result is the same.

    A vbucket has no overlay if it is stale, or if a rollback must first take rows back. It shows
    the table's rows until the next apply.

    A query reads the newest versions of log and table in the order of their names here, so the log
    comes first. If an apply comes between the two reads, the overlay repeats its changes, which
    does no harm. In the other order an apply and a round could come between, and their changes
    would be in neither.

    After a RESTORE the list is ahead of the table until the next apply or round.
    """
    touched = touched_sql(
        f"SELECT c.vbucket, c.key, {REFERENCE_SQL}, {string(Role.FRESH)} AS role "
        f"{_live_rows(changes_sql, replica)} AND c.seqno <= b.high AND NOT b.must_go_back"
    )
    newest = newest_rows_sql(
        changes_sql,
        replica.collection_id,
        f"({newest_references_sql(touched)}) w",
        LOG_COLUMNS,
        f"c.round >= {_newest_apply(changes_sql, replica, 'log_from_round')}",
    )
    cleared = f"SELECT * FROM ({_bounds(changes_sql, replica)}) WHERE NOT must_go_back"
    return f"""
SELECT {_ROW} FROM ({newest}) WHERE NOT deleted
UNION ALL
SELECT {_ROW} FROM {table_sql} t
LEFT ANTI JOIN ({touched}) o ON t.vbucket = o.vbucket AND t.key = o.key
LEFT ANTI JOIN ({cleared}) e ON t.vbucket = e.vbucket AND t.seqno < e.cleared_seqno"""


def dropped_collections_sql(changes_sql: str, replicas: Sequence[ReplicaTable]) -> str:
    """Return the tables of dropped collections, a row for each.

    ``dropped_in_round`` is the first round that brought the drop. ``vbuckets`` counts vbuckets
    whose newest live event of the collection is the drop. A vbucket that began anew keeps its drop
    until its new history shows otherwise. ``keeps_rows`` is the policy's decision.
    """
    tables = ", ".join(f"({string(each.name)}, {each.collection_id})" for each in replicas)
    return f"""
SELECT t.table, t.collection_id, min(d.dropped_in_round) AS dropped_in_round,
  count(*) AS vbuckets, array_contains({kept_sql(changes_sql)}, t.collection_id) AS keeps_rows
FROM (VALUES {tables or "('', -1)"}) AS t(table, collection_id)
JOIN (SELECT e.vbucket, collection_id, min(round) FILTER (WHERE is_drop) AS dropped_in_round,
        max_by(is_drop, struct(epoch, seqno)) AS is_dropped
      FROM (SELECT vbucket, epoch, seqno, round, collection_id, {IS_DROP_SQL} AS is_drop
            FROM {changes_sql} WHERE {IS_EVENT_SQL}) e
      LEFT JOIN ({_forks(changes_sql)}) b ON e.vbucket = b.vbucket
      WHERE NOT coalesce({undone_by_sql("b.forks", "e")}, false)
      GROUP BY e.vbucket, collection_id) d
  ON d.collection_id = t.collection_id AND d.is_dropped
GROUP BY t.table, t.collection_id"""


def row_history_sql(changes_sql: str) -> str:
    """Return every received version of every document, over all branches, each once.

    ``delete_time`` is when the server made a tombstone, in seconds since 1970; 0: the server did
    not say; NULL for mutations. ``is_live`` is false on a dead branch, and ``died_in_round`` is the
    round whose new epoch left that branch. ``cleared_at_seqno`` is the flush or drop that ended the
    row on its own history, and ``cleared_in_round`` its round; NULL without one.
    """
    died = f"array_min(filter(b.forks, f -> {dead_by_sql('f', 'c')}))"

    def in_its_life(struct: str) -> str:
        return f"{struct}.epoch < coalesce(died.epoch, {struct}.epoch + 1)"

    # A flush or drop ended the row if it came on the row's branch, and no rollback undid it before
    # the row died.
    was_undone = f"exists(forks, f -> {dead_by_sql('f', 'e')} AND {in_its_life('f')})"
    cleared = (
        f"array_min(filter(ends, e -> e.seqno > seqno AND e.epoch >= epoch AND {in_its_life('e')} "
        f"AND NOT coalesce({was_undone}, false)))"
    )
    return f"""
SELECT key, value, kind, died IS NULL AS is_live, died.round AS died_in_round,
  cleared.seqno AS cleared_at_seqno, cleared.round AS cleared_in_round, delete_time, detail, xattrs,
  {_FACTS}, collection_id, round, {_HISTORY}
FROM (SELECT *, {cleared} AS cleared
      FROM (SELECT c.*, b.forks, d.ends, {died} AS died
            FROM {changes_sql} c
            LEFT JOIN ({_forks(changes_sql)}) b ON c.vbucket = b.vbucket
            LEFT JOIN (SELECT vbucket, collection_id,
                         collect_list(struct(seqno, round, epoch)) AS ends
                       FROM {changes_sql}
                       WHERE {ends_documents_sql(changes_sql)}
                       GROUP BY vbucket, collection_id) d
              ON c.vbucket = d.vbucket AND c.collection_id = d.collection_id
            WHERE c.{is_kind(*ITEM_KINDS)}))"""


def rollbacks_sql(audit_sql: str | None) -> str:
    """Return the keys that rollbacks took back; ``audit_sql`` is None if there was no rollback."""
    if audit_sql is None:
        return _no_rows(_ROLLBACKS)
    return f"SELECT {', '.join(map(quoted, _ROLLBACKS.names))} FROM {audit_sql}"


def stale_vbuckets_sql(changes_sql: str, shown: Mapping[str, Mapping[int, int]]) -> str:
    """Return the vbuckets that a replica shows in an old state, with their old branch.

    They wait for the first complete snapshot of their new history. ``shown`` gives the rounds by
    table and vbucket.
    """
    stale = [
        f"({string(table)}, {vbucket}, CAST({number} AS BIGINT))"
        for table, rounds in shown.items()
        for vbucket, number in sorted(rounds.items())
    ]
    values = ", ".join(stale) or "('', -1, CAST(0 AS BIGINT))"
    return f"""
SELECT s.table, s.vbucket, s.round, p.position.complete_seqno AS seqno, p.position.vb_uuid
FROM (VALUES {values}) AS s(table, vbucket, round)
LEFT JOIN {changes_sql} p
  ON p.{is_kind(RowKind.POSITION)} AND p.round = s.round AND p.vbucket = s.vbucket
WHERE s.vbucket >= 0"""


def _no_rows(schema: pa.Schema) -> str:
    columns = (f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in spark_types(schema))
    return f"SELECT {', '.join(columns)} WHERE false"


def vbucket_of_sql(vbucket_count: int) -> str:
    """Return the body of the SQL function ``vbucket_of(key)`` for values of the column ``key``.

    It is Couchbase's CRC rule. A literal argument gives a literal, so ``WHERE vbucket =
    vbucket_of('k') AND key = 'k'`` reads the files of one vbucket only.
    """
    prefix = string(ESCAPE_PREFIX)
    binary = (
        f"CASE WHEN startswith(key, {prefix}) THEN unhex(substr(key, {len(ESCAPE_PREFIX) + 1})) "
        "ELSE CAST(key AS BINARY) END"
    )
    return f"CAST((shiftright(crc32({binary}), 16) & 32767) % {int(vbucket_count)} AS INT)"


def _newest_round(changes_sql: str) -> str:
    return f"(SELECT max(round) FROM {changes_sql} WHERE {is_kind(RowKind.POSITION)})"


def _newest_apply(changes_sql: str, replica: ReplicaTable, field: str) -> str:
    """Return a field of the newest listed apply; 0 before the first."""
    return (
        f"(SELECT coalesce(max_by(applied.{field}, struct(round, applied.version)), 0) "
        f"FROM {changes_sql} "
        f"WHERE {is_kind(RowKind.APPLIED)} AND applied.table = {string(replica.name)})"
    )


def _forks(changes_sql: str) -> str:
    """Return SELECT … of each vbucket's forks, an array of structs."""
    return f"""
SELECT vbucket, collect_list(struct(epoch, seqno, round)) AS forks
FROM {changes_sql} WHERE {IS_FORK_SQL} GROUP BY vbucket"""


def _live_rows(changes_sql: str, replica: ReplicaTable) -> str:
    """Return FROM … WHERE … for the live document rows (c) that the replica may lack.

    Rows that a complete flush or drop ended are excluded. ``b`` holds the vbucket's bounds.
    """
    return f"""
FROM {changes_sql} c
JOIN ({_bounds(changes_sql, replica)}) b
  ON c.vbucket = b.vbucket AND c.seqno > b.cleared_seqno
    AND NOT exists(b.forks, f -> {dead_by_sql("f", "c")})
WHERE c.{is_kind(*ITEM_KINDS)} AND c.collection_id = {replica.collection_id}
  AND c.round >= {_newest_apply(changes_sql, replica, "log_from_round")}"""


def _bounds(changes_sql: str, replica: ReplicaTable) -> str:
    """Return SELECT … of the bounds of each vbucket's live rows that the replica may lack.

    A reader skips the files of older rounds only if a scalar subquery gives the first round. Each
    scalar subquery reads the table's file list, so there is one: bounds and newest apply come from
    the rows of those rounds. Older forks kill only rows of older rounds.

    ``must_go_back``: the replica's rows are not live, since a later fork lies below them or the
    vbucket is stale. ``cleared_seqno`` is the newest complete and live flush or drop of the
    collection, or 0.
    """
    is_apply = f"{is_kind(RowKind.APPLIED)} AND applied.table = {string(replica.name)}"
    is_end = f"{ends_documents_sql(changes_sql)} AND collection_id = {replica.collection_id}"
    is_live = f"NOT exists(forks, f -> {dead_by_sql('f', 'e')})"
    return f"""
SELECT vbucket, high, forks,
  is_stale OR coalesce(exists(forks, f -> {dead_by_sql("f", "published")}), false) AS must_go_back,
  coalesce(array_max(transform(filter(ends, e -> e.seqno <= high AND {is_live}), e -> e.seqno)), 0)
    AS cleared_seqno
FROM (SELECT vbucket,
        max_by(position.complete_seqno, round) FILTER (WHERE {is_kind(RowKind.POSITION)}) AS high,
        max_by(struct(epoch, position.complete_seqno AS seqno), round)
          FILTER (WHERE {is_kind(RowKind.POSITION)} AND round <= newest.to_round) AS published,
        coalesce(exists(any_value(newest.stale_vbuckets), s -> s.vbucket = vbucket), false)
          AS is_stale,
        collect_list(struct(epoch, seqno)) FILTER (WHERE {is_kind(RowKind.ROLLBACK)}) AS forks,
        collect_list(struct(epoch, seqno)) FILTER (WHERE {is_kind(RowKind.SYSTEM_EVENT)}) AS ends
      FROM (SELECT kind, vbucket, round, epoch, seqno, position,
              max_by(applied, IF({is_apply}, struct(round, applied.version), NULL)) OVER ()
                AS newest
            FROM {changes_sql}
            WHERE ({is_kind(RowKind.POSITION)} OR {IS_FORK_SQL} OR {is_end} OR {is_apply})
              AND round >= {_newest_apply(changes_sql, replica, "log_from_round")})
      WHERE vbucket IS NOT NULL
      GROUP BY vbucket)"""
