"""Columnar rows of ``changes`` against an oracle that makes the same rows one by one as objects."""

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import FrameError
from dcp.lake.receive.batches import BatchBuilder
from dcp.lake.receive.keys import key_string
from dcp.lake.tables.schema import CHANGES, RowKind
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.columns import NO_STREAM_ID, DataColumns
from dcp.wire.documents import decode_document
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype, Opcode
from dcp.wire.xattr import join_xattrs, xattrs_json

U64 = st.integers(0, 2**64 - 1) | st.just(2**64 - 1) | st.just(2**63)
U32 = st.integers(0, 2**32 - 1)
OLD, NEW = 0x0123_4567_89AB_CDEF, 0xFFFF_FFFF_FFFF_FFFF
LOG = FailoverLog((FailoverEntry(NEW, 1000), FailoverEntry(OLD, 0)))
OTHER_LOG = FailoverLog((FailoverEntry(7, 0),))
SNAPPY_OF_HELLO = b"\x05\x10hello"

Row = dict[str, Any]
ROWS = st.fixed_dictionaries(
    {
        "opcode": st.sampled_from(
            [Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION]
        ),
        "vbucket": st.sampled_from([0, 1023]),
        "cas": U64,
        "seqno": st.integers(1, 2**64 - 1) | st.integers(998, 1002),
        "rev": U64,
        "flags": U32,
        "expiry": U32,
        "lock_time": U32,
        "delete_time": U32,
        "datatype": st.sampled_from([0, 1, 2, 3, 4, 8, 0xFF]),
        "collection_id": U32,
        "key": st.binary(max_size=250) | st.sampled_from([b"", b"\x00", b"\xff", b"\\x00", b"k"]),
        "value": st.binary(max_size=20)
        | st.sampled_from([b"", b"{}", SNAPPY_OF_HELLO, b"\x00\x00\x00\x00rest"]),
    }
)


def columns_of(rows: list[Row]) -> DataColumns:
    def numbers(name: str, kind: Any) -> Any:
        return np.array([row[name] for row in rows], kind)

    return DataColumns(
        opcode=numbers("opcode", np.uint8),
        vbucket=numbers("vbucket", np.uint16),
        opaque=np.zeros(len(rows), np.uint32),
        cas=numbers("cas", np.uint64),
        seqno=numbers("seqno", np.uint64),
        rev=numbers("rev", np.uint64),
        flags=numbers("flags", np.uint32),
        expiry=numbers("expiry", np.uint32),
        lock_time=numbers("lock_time", np.uint32),
        delete_time=numbers("delete_time", np.uint32),
        datatype=numbers("datatype", np.uint8),
        collection_id=numbers("collection_id", np.uint32),
        stream_id=np.full(len(rows), NO_STREAM_ID, np.int32),
        frame_bytes=np.ones(len(rows), np.uint32),
        key=pa.array([row["key"] for row in rows], pa.binary()),
        value=pa.array([b"other", *(row["value"] for row in rows)], pa.binary()).slice(1),
    )


def builder_of(
    batch_rows: int = 10**6, batch_bytes: int = 2**30, *, system_xattrs: bool = True
) -> BatchBuilder:
    builder = BatchBuilder(5, batch_rows, batch_bytes, system_xattrs=system_xattrs)
    builder.branches.set_epoch(0, 0)
    builder.branches.set_epoch(1023, 3)
    builder.branches.set_failover_log(0, LOG)
    builder.branches.set_failover_log(1023, OTHER_LOG)
    return builder


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    builder = builder_of()
    builder.add_documents(columns_of(rows))
    [batch] = builder.flush()
    return batch


def oracle(row: Row) -> Row:
    """One row, made the slow and obvious way."""
    mutation = row["opcode"] == Opcode.DCP_MUTATION
    kinds = {Opcode.DCP_MUTATION: "mutation", Opcode.DCP_DELETION: "deletion"}
    key = key_string(row["key"])
    datatype, xattrs, value, detail = row["datatype"], None, row["value"], None
    try:
        document = decode_document(row["value"], row["datatype"])
        datatype, value = document.datatype, document.body
        xattrs = None if document.xattrs is None else xattrs_json(document.xattrs)
    except FrameError as error:
        detail = str(error)
    uuid = (OLD if row["seqno"] < 1000 else NEW) if row["vbucket"] == 0 else 7
    return dict.fromkeys(CHANGES.names) | {
        "round": 5,
        "epoch": 0 if row["vbucket"] == 0 else 3,
        "vbucket": row["vbucket"],
        "kind": kinds.get(row["opcode"], "expiration"),
        "seqno": Decimal(row["seqno"]),
        "vb_uuid": Decimal(uuid),
        "collection_id": row["collection_id"],
        "key": key,
        "key_bytes": row["key"] if key.startswith("\\x") else None,
        "cas": Decimal(row["cas"]),
        "rev": Decimal(row["rev"]),
        "flags": row["flags"] if mutation else None,
        "expiry": row["expiry"] if mutation else None,
        "lock_time": row["lock_time"] if mutation else None,
        "delete_time": None if mutation else row["delete_time"],
        "datatype": datatype,
        "xattrs": xattrs,
        "value": value if mutation or value else None,
        "detail": detail,
    }


@given(st.lists(ROWS, min_size=1, max_size=12))
def test_columns_are_the_rows_of_the_object_path(rows: list[Row]) -> None:
    batch = batch_of(rows)
    batch.validate(full=True)
    assert batch.schema == CHANGES
    for found, row in zip(batch.to_pylist(), rows, strict=True):
        expected = oracle(row)
        assert (found["detail"] is None) == (expected["detail"] is None)
        if expected["detail"] is not None:
            assert expected["detail"] in found["detail"]
        assert found | {"detail": None} == expected | {"detail": None}


NEWER_LOG = FailoverLog((FailoverEntry(9, 1001), *LOG.entries))
STEPS = st.lists(
    st.lists(ROWS, min_size=1, max_size=4)
    | st.sampled_from([(0, LOG), (0, NEWER_LOG), (1023, OTHER_LOG), (1023, LOG)])
    | st.tuples(st.sampled_from([0, 1023]), st.integers(0, 9)),
    max_size=8,
)


@given(STEPS, st.integers(1, 9), st.sampled_from([1, 40, 2**30]), st.integers(0, 3))
def test_deliveries_together_are_what_each_is_alone(
    steps: list[Any], batch_rows: int, batch_bytes: int, events: int
) -> None:
    together, alone = builder_of(batch_rows, batch_bytes), builder_of()
    apart: list[Row] = []
    for step in steps:
        match step:
            case (vbucket, FailoverLog() as log):
                for each in (together, alone):
                    each.branches.set_failover_log(vbucket, log)
            case (int(vbucket), int(epoch)):
                for each in (together, alone):
                    each.branches.set_epoch(vbucket, epoch)
            case rows:
                together.add_documents(columns_of(rows))
                alone.add_documents(columns_of(rows))
                apart += [row for batch in alone.flush() for row in batch.to_pylist()]
    for seqno in range(events):
        for builder in (together, alone):
            builder.add_event(RowKind.COMPLETE, 0, seqno=seqno, vb_uuid=7)
    apart += [row for batch in alone.flush() for row in batch.to_pylist()]
    assert together.rows == len(apart)
    batches = list(together.flush())
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == CHANGES
        assert 0 < batch.num_rows <= batch_rows
    if batch_bytes == 2**30:
        assert len(batches) == -(-len(apart) // batch_rows)
    assert [row for batch in batches for row in batch.to_pylist()] == apart
    for name, counted in vars(together.counts).items():
        assert (counted == getattr(alone.counts, name)).all(), name
    documents = [row for row in apart if row["kind"] != "complete"]
    counts = together.counts
    assert counts.rows.sum() == counts.frame_bytes.sum() == len(documents)
    assert counts.escaped_keys[0] == sum(
        row["key_bytes"] is not None for row in documents if row["vbucket"] == 0
    )
    assert counts.undecodable_values[1023] == sum(
        row["detail"] is not None for row in documents if row["vbucket"] == 1023
    )


def plain_row(seqno: int, **other: Any) -> Row:
    return {
        "opcode": Opcode.DCP_MUTATION,
        "vbucket": 0,
        "seqno": seqno,
        **dict.fromkeys(
            ("cas", "rev", "flags", "expiry", "lock_time", "delete_time", "collection_id"), 0
        ),
        "datatype": 1,
        "key": f"key-{seqno}".encode(),
        "value": json.dumps({"n": seqno}).encode(),
        **other,
    }


def test_one_broken_value_survives_among_good_ones() -> None:
    rows = [plain_row(seqno) for seqno in range(1, 101)]
    rows[41] = plain_row(42, datatype=2, value=b"\xff\xff\xff\xff\xff")
    found = batch_of(rows).to_pylist()
    assert [row["seqno"] for row in found if row["detail"]] == [42]
    assert found[41]["value"] == b"\xff\xff\xff\xff\xff"
    assert found[41]["datatype"] == 2
    assert "kept as it was sent" in found[41]["detail"]
    assert found[40]["value"] == b'{"n": 41}'


def test_an_insert_that_a_transaction_only_staged_is_a_deletion_and_nothing_of_it_stays() -> None:
    """Couchbase stages an insert in the xattr ``txn`` of a tombstone."""
    staged = b'{"op":{"type":"insert","stgd":{"not":"committed"}}}'
    value = join_xattrs([(b"txn", staged)], b"")
    tombstone = plain_row(
        1, opcode=Opcode.DCP_DELETION, datatype=int(Datatype.XATTR), value=value, delete_time=9
    )
    builder = builder_of(10, 2**20, system_xattrs=False)
    builder.add_documents(columns_of([tombstone]))
    [batch] = builder.flush()
    [found] = batch.to_pylist()
    told = {name: found[name] for name in ("kind", "xattrs", "value", "detail")}
    assert told == {"kind": "deletion", "xattrs": None, "value": None, "detail": None}


def test_events_and_items_come_out_in_batches_of_limited_rows() -> None:
    builder = builder_of(batch_rows=30)
    builder.add_event(RowKind.SNAPSHOT_MARKER, 0, snap_start=0, snap_end=2**64 - 1, snap_flags=6)
    builder.add_documents(columns_of([plain_row(seqno) for seqno in range(1, 71)]))
    builder.add_event(RowKind.COMPLETE, 1023, seqno=2**64 - 1, vb_uuid=7)
    assert builder.rows == 72
    batches = list(builder.flush())
    assert [batch.num_rows for batch in batches] == [30, 30, 12]
    assert all(batch.schema == CHANGES for batch in batches)
    table = pa.Table.from_batches(batches).to_pylist()
    marker = next(row for row in table if row["kind"] == "snapshot_marker")
    complete = next(row for row in table if row["kind"] == "complete")
    assert (marker["snap_end"], marker["round"], marker["epoch"]) == (Decimal(2**64 - 1), 5, 0)
    assert (complete["seqno"], complete["epoch"]) == (Decimal(2**64 - 1), 3)
    assert sum(row["kind"] == "mutation" for row in table) == 70
    assert list(builder.flush()) == []
    assert builder.rows == 0


def test_a_large_part_stands_alone_and_rows_keep_their_order() -> None:
    builder = builder_of(batch_rows=4, batch_bytes=60)
    seqno = 0
    for rows in (3, 2, 6, 1):  # of 8 bytes and an offset each: the third is as large as a batch
        builder.add_documents(columns_of([plain_row(seqno + more) for more in range(1, rows + 1)]))
        seqno += rows
    builder.add_event(RowKind.COMPLETE, 0, seqno=12, vb_uuid=7)
    flushed = list(builder.flush())
    assert [each.num_rows for each in flushed] == [4, 1, 4, 2, 2]
    found = [row["seqno"] for each in flushed for row in each.to_pylist()]
    assert found == [*range(1, 13), 12]


def test_what_is_as_large_as_a_batch_is_not_copied() -> None:
    builder = builder_of(batch_bytes=1000)
    large = columns_of([plain_row(2, value=b"x" * 1000)])
    deleted = plain_row(4, opcode=Opcode.DCP_DELETION, value=b"")
    emptied = columns_of([plain_row(3, value=b"x" * 1000), deleted])
    for columns in (columns_of([plain_row(1)]), large, emptied):
        builder.add_documents(columns)
    builder.add_documents(columns_of([plain_row(5, datatype=2, value=deflate(b"x" * 1000))]))
    builder.add_event(RowKind.COMPLETE, 0, seqno=5, vb_uuid=7)
    _, second, third, fourth, last = builder.flush()
    for batch, columns in ((second, large), (third, emptied)):
        assert batch["value"].buffers()[2].address == columns.value.buffers()[2].address
    assert third["value"].to_pylist() == [b"x" * 1000, None]
    assert (fourth["value"].to_pylist(), last.num_rows) == ([b"x" * 1000], 1)


def test_what_inflates_is_given_in_batches_of_limited_bytes() -> None:
    """What waits is as sent, 20 times smaller; a document beyond a batch is one by itself."""
    inflated = {seqno: b"x" * (700 + seqno) for seqno in range(1, 61)} | {30: b"x" * 4500}
    rows = [plain_row(seqno, datatype=2, value=deflate(value)) for seqno, value in inflated.items()]
    builder = builder_of(batch_bytes=3000)
    for start in range(0, len(rows), 20):  # deliveries of about a batch's bytes each
        builder.add_documents(columns_of(rows[start : start + 20]))
    builder.add_documents(columns_of([plain_row(61)]))
    batches = list(builder.flush())
    assert [row["value"] for batch in batches for row in batch.to_pylist()][:-1] == [
        *inflated.values()
    ]
    sizes = [
        (batch.num_rows, pc.sum(pc.binary_length(batch["value"])).as_py()) for batch in batches
    ]
    assert [size for size in sizes if size[1] > 3000] == [(1, len(inflated[30]))]
    assert len(batches) < 30, "they are filled, too"
    assert builder.counts.largest_bytes[0] == len(inflated[30])


def test_an_event_with_a_column_of_no_event_is_refused() -> None:
    builder = builder_of(batch_rows=30)
    try:
        builder.add_event(RowKind.COMPLETE, 0, seqnos=3)
    except ValueError as error:
        assert "seqnos" in str(error)
    else:
        raise AssertionError("a misspelled column passed")
