"""Defines the columns of the lake's tables, as Arrow schemas and Spark DDL.

Unsigned 64-bit values (seqno, cas, vb_uuid, rev) are DECIMAL(20,0): exact, ordered, and readable by
every engine. Unsigned 32-bit values are BIGINT. ``key`` is STRING because Delta cannot cluster by
BINARY or keep statistics for it. If a key is not UTF-8, ``key_bytes`` has it, and ``key`` an
injective escape (``dcp/lake/receive/keys.py``).

``value`` is the document, decompressed and without xattrs. ``datatype`` is 0 (raw) or 1 (JSON).
A ``datatype`` above 1 marks a value that could not be decoded. Then both are as the server sent
them: bit 2 is SNAPPY, bit 4 is XATTR. ``xattrs`` is null, and ``detail`` in ``changes`` says why.
"""

from dataclasses import is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, get_args, get_origin

import pyarrow as pa

from dcp.lake.store.sql import quoted, string_list
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.quality_check import ExpectationResult, QualityCheck, RowSample
from dcp.lake.tables.undone_key import DocumentState, UndoneKey
from dcp.lake.tables.vbucket_state import LakeVbucketState, RollbackOrder
from dcp.records import SPREAD, bare, marked, row_members

FORMAT_VERSION: Final = 10
"""The format of lakes: columns, kinds of rows, metadata of commits. Other lakes are refused."""


class RowKind(StrEnum):
    """The values of the column ``kind``, which decides what other columns a row has."""

    MUTATION = "mutation"
    DELETION = "deletion"
    EXPIRATION = "expiration"
    """For the three kinds of `ITEM_KINDS`, seqno to value hold the document's new state.

    ``detail`` says why the value could not be decoded; null if it was. ``delete_time`` is the time
    when the server made a tombstone, in seconds since 1970. It is 0 if the server does not send it,
    and null for mutations.
    """

    SNAPSHOT_MARKER = "snapshot_marker"
    """snap_start, snap_end, snap_flags"""

    COMPLETE = "complete"
    """seqno: the end of a snapshot that was received completely"""

    SEQNO_ADVANCED = "seqno_advanced"
    """seqno"""

    SYSTEM_EVENT = "system_event"
    """seqno, detail (JSON, see `dcp.lake.change_log.system_event_detail`).

    ``collection_id`` is set if a collection begins, is flushed or is dropped. At the source, the
    vbucket then has none of its documents at a lower seqno.

    A row without vbucket and seqno records the policy for a dropped collection's rows (``policy``
    in ``detail``). Each task of the round that first received the drop writes the same row
    (`dcp.lake.change_log.collection_events`).
    """

    ROLLBACK = "rollback"
    """rollback: what the producer ordered; such a row has no seqno.

    Or epoch, seqno and detail: a new epoch begins, for this reason (`RestartReason`). Rows of
    earlier epochs above this seqno (the fork) are on a dead branch.
    """

    STATUS = "status"
    """detail (JSON): how the stream of a vbucket ended, what it brought, and why it stopped.

    A round has one for each vbucket that it streamed.
    """

    POSITION = "position"
    """position: the state of a vbucket from which the next round continues"""

    APPLIED = "applied"
    """applied: a version of a replica, and the rounds that it holds"""


ITEM_KINDS: Final = (RowKind.MUTATION, RowKind.DELETION, RowKind.EXPIRATION)


def is_kind(*kinds: RowKind) -> str:
    """Return the condition that a row has one of these kinds; an alias may precede it."""
    return f"kind IN ({string_list(kinds)})" if len(kinds) > 1 else f"kind = '{kinds[0]}'"


U64: Final = pa.decimal128(20, 0)

TIME: Final = pa.timestamp("us", tz="UTC")

_COLUMN_TYPES: Final = {
    bool: pa.bool_(),
    int: U64,
    str: pa.string(),
    bytes: pa.binary(),
    datetime: TIME,
}


def column_type(annotation: Any) -> pa.DataType:
    """Return the column type for a record's field, from the field's annotation.

    An integer without an Arrow type in its annotation is an unsigned 64-bit one.
    """
    kind, _ = bare(annotation)
    if get_origin(kind) is tuple:
        return pa.list_(column_type(get_args(kind)[0]))
    if (told := marked(annotation, pa.DataType)) is not None:
        return told
    if not is_dataclass(kind):
        return next(told for each, told in _COLUMN_TYPES.items() if issubclass(kind, each))
    columns = columns_of(kind)
    return pa.struct(columns) if len(columns) > 1 else columns[0].type


def columns_of(kind: Any) -> list[pa.Field]:
    """Return the columns of a record's rows."""
    columns: list[pa.Field] = []
    for name, annotation in row_members(kind):
        if name == SPREAD:
            columns += columns_of(bare(annotation)[0])
        else:
            columns.append(pa.field(name, column_type(annotation)))
    return columns


ROLLBACK: Final = column_type(RollbackOrder)

POSITION: Final = pa.struct(
    [each for each in columns_of(LakeVbucketState) if each.name not in ("vbucket", "epoch")]
)

CHANGES: Final = pa.schema(
    [
        ("round", pa.int64()),
        ("epoch", pa.int32()),
        ("vbucket", pa.int32()),
        ("kind", pa.string()),
        ("seqno", U64),
        ("vb_uuid", U64),
        ("collection_id", pa.int64()),
        ("key", pa.string()),
        ("key_bytes", pa.binary()),
        ("cas", U64),
        ("rev", U64),
        ("flags", pa.int64()),
        ("expiry", pa.int64()),
        ("lock_time", pa.int64()),
        ("delete_time", pa.int64()),
        ("datatype", pa.int32()),
        ("xattrs", pa.string()),
        ("value", pa.binary()),
        ("snap_start", U64),
        ("snap_end", U64),
        ("snap_flags", pa.int64()),
        ("detail", pa.string()),
        ("position", POSITION),
        ("rollback", ROLLBACK),
        ("applied", column_type(AppliedVersion)),
    ]
)
"""One row per event."""

CHANGES_STATISTICS: Final = ("round", "epoch", "vbucket", "kind", "seqno", "collection_id")
"""Each file of ``changes`` has the minimum and maximum of these columns."""

REPLICA: Final = pa.schema(
    [
        *map(CHANGES.field, ("vbucket", "key", "key_bytes", "seqno", "vb_uuid", "epoch", "cas")),
        *map(CHANGES.field, ("rev", "flags", "expiry", "datatype", "xattrs", "value")),
        ("modified_at", TIME),
    ]
)
"""One row per document. ``modified_at`` is the time in the CAS (its upper 48 bits, in ns)."""

VIOLATION: Final = pa.struct(
    [
        ("path", pa.string()),
        ("found", pa.string()),
        ("expected", pa.string()),
    ]
)

TYPED: Final = pa.schema(
    [
        ("doc", pa.struct([])),  # its fields are those of the collection's contract
        ("violations", pa.list_(VIOLATION)),
    ]
)
"""Further columns of a replica with a contract (`dcp.lake.tables.typed_columns`).

``violations`` is null if the document fits the contract.
"""

ROW_COLUMNS: Final = (*REPLICA.names, *TYPED.names)
"""All columns of a replica with typed columns."""

REPLICA_STATISTICS: Final = ("vbucket", "key", "seqno", "modified_at", "datatype")
"""Each file of a replica has the minimum and maximum of these columns."""

REPLICA_CLUSTERING: Final = ("vbucket", "key")
"""Delta stores rows with near values of these columns together."""

DOCUMENT_STATE: Final = column_type(DocumentState)

AUDIT: Final = pa.schema(columns_of(UndoneKey))
"""The table ``undone``: one row for each key in each replica that a rollback took back."""

IDENTIFYING_COLUMNS: Final = tuple(each.name for each in columns_of(RowSample))

QUALITY: Final = pa.schema([*columns_of(QualityCheck), *columns_of(ExpectationResult)])
"""The table ``quality``: one row for each expectation of each check."""


def spark_ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in spark_types(schema))


def spark_types(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(column.name, spark_type(column.type)) for column in schema]


_SPARK_TYPES: Final = {
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    TIME: "TIMESTAMP",
}


def spark_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        inner = ", ".join(f"{quoted(field.name)}: {spark_type(field.type)}" for field in kind)
        return f"STRUCT<{inner}>"
    if pa.types.is_map(kind):
        return f"MAP<STRING, {spark_type(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _SPARK_TYPES.get(kind) or str(kind)  # other types appear in messages only
