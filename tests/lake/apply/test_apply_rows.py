"""Each key's fate follows from the rows that the log has of it: in any order, however many."""

from dataclasses import asdict, fields
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.adapters.apply_sql import newest_references_sql, touched_sql
from dcp.lake.change_log.touched_keys import RowReference
from dcp.lake.store.log_slice import Role
from dcp.lake.tables.schema import CHANGES

REFERENCE = tuple(each.name for each in fields(RowReference))
ROWS = pa.schema([*map(CHANGES.field, ("vbucket", "key", *REFERENCE)), ("role", pa.string())])

SEQNOS = [1, 2, 9, 10, 2**63, 2**64 - 1]
LIVE = [RowReference(seqno, at // 2, 3 + at // 3) for at, seqno in enumerate(SEQNOS)]
"""Epochs and rounds ascend with the seqnos of live rows."""

rows = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from("abc"),
        st.one_of(
            st.tuples(
                st.sampled_from((Role.FRESH, Role.KEPT, Role.REVIVED)), st.sampled_from(LIVE)
            ),
            st.tuples(
                st.just(Role.UNDONE),
                st.builds(RowReference, st.sampled_from(SEQNOS), st.integers(0, 2), st.just(3)),
            ),
            st.sampled_from(((Role.IN_TABLE, None), (Role.REVIVED, None))),
        ),
    ),
    max_size=40,
)


@given(rows)
def test_the_newest_live_version_of_a_touched_key_wins(
    log: list[tuple[int, str, tuple[Role, RowReference | None]]],
) -> None:
    given_rows: list[dict[str, Any]] = [
        {"vbucket": vbucket, "key": key, "role": role, **(asdict(reference) if reference else {})}
        for vbucket, key, (role, reference) in log
    ]
    touched = touched_sql("SELECT * FROM t")
    found = select(touched, given_rows)
    expected: dict[tuple[int, str], RowReference | None] = {}
    for key in sorted({row[:2] for row in log}):
        own = [row for *at, row in log if tuple(at) == key]
        if {role for role, _ in own} != {Role.KEPT}:
            live = [
                reference
                for role, reference in own
                if reference is not None and role != Role.UNDONE
            ]
            expected[key] = max(live, key=attrgetter("seqno"), default=None)
    assert {
        (row["vbucket"], row["key"]): place_of(row) for row in found if row["is_touched"]
    } == expected
    assert {(row["vbucket"], row["key"]) for row in found if row["is_undone"]} == {
        tuple(at) for *at, (role, _) in log if role in (Role.UNDONE, Role.REVIVED)
    }
    assert sum(row["row_count"] for row in found) == len(log)
    newest = select(newest_references_sql(touched), given_rows)
    found_newest = [((row["vbucket"], row["key"]), place_of(row)) for row in newest]
    assert sorted(found_newest, key=itemgetter(0)) == [
        (key, reference) for key, reference in expected.items() if reference is not None
    ]


def place_of(row: dict[str, Any]) -> RowReference | None:
    return None if row["seqno"] is None else RowReference(*(int(row[name]) for name in REFERENCE))


def select(query: str, given_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    context = SessionContext()
    batches = pa.Table.from_pylist(given_rows, ROWS).to_batches() or [
        pa.RecordBatch.from_pylist([], ROWS)
    ]
    context.register_record_batches("t", [batches])
    return [row for batch in context.sql(query).collect() for row in batch.to_pylist()]
