"""Each key's fate follows from the rows that the log has of it: in any order, however many."""

from dataclasses import astuple
from typing import Any

import pyarrow as pa
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.adapters.apply_sql import newest_places_sql, touched_sql
from dcp.lake.change_log.touched_keys import RowPlace
from dcp.lake.store.log_slice import Role
from dcp.lake.tables.schema import CHANGES

PLACE = pa.struct([CHANGES.field(name) for name in ("seqno", "epoch", "round")])
ROWS = pa.schema([*map(CHANGES.field, ("vbucket", "key")), ("place", PLACE), ("role", pa.string())])

SEQNOS = [1, 2, 9, 10, 2**63, 2**64 - 1]

rows = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from("abc"),
        st.sampled_from(list(Role)),
        st.builds(
            RowPlace,
            st.sampled_from([1, 2, 9, 10, 2**63, 2**64 - 1]),
            st.integers(0, 2),
            st.just(3),
        ),
    ),
    max_size=40,
)


@given(rows)
def test_the_newest_live_version_of_a_touched_key_wins(
    log: list[tuple[int, str, Role, RowPlace]],
) -> None:
    given_rows: list[dict[str, Any]] = [
        {
            "vbucket": vbucket,
            "key": key,
            "role": role,
            "place": None
            if role is Role.HELD
            else dict(zip(("seqno", "epoch", "round"), astuple(place), strict=True)),
        }
        for vbucket, key, role, place in log
    ]
    touched = touched_sql("SELECT * FROM t")
    found = select(touched, given_rows)
    expected: dict[tuple[int, str], RowPlace | None] = {}
    for key in sorted({row[:2] for row in log}):
        own = [row for row in log if row[:2] == key]
        if {role for _, _, role, _ in own} != {Role.KEPT}:
            is_old = (Role.UNDONE, Role.HELD)
            live = [place for _, _, role, place in own if role not in is_old]
            expected[key] = max(live, default=None)
    assert {
        (row["vbucket"], row["key"]): row["newest"] and RowPlace(**row["newest"])
        for row in found
        if row["is_touched"]
    } == expected
    assert {(row["vbucket"], row["key"]) for row in found if row["is_undone"]} == {
        row[:2] for row in log if row[2] in (Role.UNDONE, Role.REVIVED)
    }
    assert sum(row["row_count"] for row in found) == len(log)
    assert sorted(
        (row["vbucket"], row["key"], RowPlace(row["seqno"], row["epoch"], row["round"]))
        for row in select(newest_places_sql(touched), given_rows)
    ) == sorted((*key, place) for key, place in expected.items() if place is not None)


def select(query: str, given_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    context = SessionContext()
    batches = pa.Table.from_pylist(given_rows, ROWS).to_batches() or [
        pa.RecordBatch.from_pylist([], ROWS)
    ]
    context.register_record_batches("t", [batches])
    return [row for batch in context.sql(query).collect() for row in batch.to_pylist()]
