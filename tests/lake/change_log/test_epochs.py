"""Liveness in SQL is liveness in Python."""

import pyarrow as pa
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.change_log.epochs import Fork, dead_by_sql, live_up_to
from dcp.lake.tables.schema import CHANGES
from dcp.lake.tables.vbucket_state import FIRST_EPOCH

SCHEMA = pa.schema(map(CHANGES.field, ("epoch", "seqno")))
SEQNOS = st.sampled_from((0, 1, 2, 9, 10, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1))
EPOCHS = st.integers(FIRST_EPOCH, FIRST_EPOCH + 4)


@given(
    st.lists(SEQNOS, max_size=4),
    st.lists(st.tuples(EPOCHS, SEQNOS), min_size=1, max_size=30),
)
def test_the_condition_of_queries_agrees_with_the_rule_of_plans(
    fork_seqnos: list[int], rows: list[tuple[int, int]]
) -> None:
    forks = [Fork(epoch, seqno, 7) for epoch, seqno in enumerate(fork_seqnos, FIRST_EPOCH + 1)]
    tables = {
        "forks": [{"epoch": each.epoch, "seqno": each.seqno} for each in forks],
        "rows": [{"epoch": epoch, "seqno": seqno} for epoch, seqno in rows],
    }
    context = SessionContext()
    for name, made in tables.items():
        batches = pa.Table.from_pylist(made, SCHEMA).to_batches() or [
            pa.RecordBatch.from_pylist([], SCHEMA)
        ]
        context.register_record_batches(name, [batches])
    found = context.sql(
        f"SELECT c.epoch, c.seqno FROM rows c LEFT ANTI JOIN forks f ON {dead_by_sql('f', 'c')}"
    ).to_arrow_table()
    live = sorted((row["epoch"], int(row["seqno"])) for row in found.to_pylist())
    assert live == sorted(row for row in rows if row[1] <= live_up_to(row[0], forks))
