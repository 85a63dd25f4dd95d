"""Compares the contents of a lake's tables with the producer's."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dcp.lake.change_log.applied import applied_of
from dcp.lake.change_log.round_queries import round_records, states_at
from dcp.lake.query.views import lake_views
from dcp.lake.query.views_sql import docs_live_sql
from dcp.lake.store.sql import quoted
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable
from dcp.lake.tables.schema import ITEM_KINDS, RowKind, is_kind
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.producer.cluster import ProducerCluster
from tests.lake.versions import version_in

Rows = dict[int, dict[bytes, tuple[int, int, bytes]]]
"""By vbucket and key: seqno, cas, value."""


def rows_of(lake: LakeTables, source_sql: str) -> Rows:
    """Return the documents that Spark finds in a table or a view."""
    columns = "vbucket, key, key_bytes, seqno, cas, value"
    return _rows(lake.spark.sql(f"SELECT {columns} FROM {source_sql}").toArrow(), source_sql)


def asked(lake: LakeTables, query: str, replicas: Sequence[ReplicaTable] = (DOCS,)) -> pa.Table:
    """Return what Spark finds by a query; of the lake's views only those that it names are made."""
    for name, view in lake_views(lake, replicas).items():
        if re.search(rf"\b{name}\b", query):
            lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(name)} AS {view}")
    return lake.spark.sql(query).toArrow()


def _rows(table: pa.Table, source: str) -> Rows:
    found: Rows = {}
    for row in table.to_pylist():
        key = row["key_bytes"] or row["key"].encode()
        documents = found.setdefault(row["vbucket"], {})
        assert key not in documents, f"key {key!r} twice in {source}"
        documents[key] = (int(row["seqno"]), int(row["cas"]), row["value"])
    return found


def table_rows(lake: LakeTables, version: int | None, replica: ReplicaTable = DOCS) -> Rows:
    """Return a replica's documents at a version (None: now), by an engine other than Spark."""
    name = replica.name
    return _rows(version_in(lake, name, version), f"{name} version {version}")


def source_rows(cluster: ProducerCluster, seqnos: dict[int, int] | None = None) -> Rows:
    """Return what the producer held at these seqnos (None: what it holds now)."""
    if seqnos is None:
        seqnos = {vb: cluster.high_seqno(vb) for vb in range(cluster.settings.vbuckets)}
    return {
        vbucket: {
            key: (document.seqno, document.cas, document.value)
            for key, document in cluster.state_at(vbucket, seqno).items()
        }
        for vbucket, seqno in seqnos.items()
        if cluster.state_at(vbucket, seqno)
    }


def complete_seqnos(lake: LakeTables, round_number: int) -> dict[int, int]:
    """Return each vbucket's complete seqno at a round."""
    states = states_at(lake, round_number)
    return {vbucket: state.complete_seqno for vbucket, state in states.items()}


def rows_at(
    cluster: ProducerCluster, states: Iterable[LakeVbucketState], replica: ReplicaTable = DOCS
) -> Rows:
    """Return what the producer held at each state's complete seqno, on the branch of its data."""
    found: Rows = {}
    for state in states:
        seqno, log = state.complete_seqno, state.failover_log
        if seqno == 0 or log is None:
            continue
        held = cluster.state_at(
            state.vbucket, seqno, log.uuid_at(seqno), collection=replica.collection_id
        )
        if held:
            found[state.vbucket] = {
                key: (document.seqno, document.cas, document.value)
                for key, document in held.items()
            }
    return found


def require_every_version_exact(
    lake: LakeTables, cluster: ProducerCluster, replica: ReplicaTable = DOCS
) -> int:
    """Compare each version of a replica with the producer at that round; return how many.

    What a version holds of a stale vbucket is of an older round.
    """
    commits = history(lake.table(replica.name), 1000)
    versions = [applied_of(replica.name, commit) for commit in commits if commit.is_apply]
    rounds = {applied.round_of(vb) for applied in versions for vb in _vbuckets(lake)}
    records = round_records(lake, rounds)
    for applied in versions:
        states = (records[applied.round_of(vb)].states.get(vb) for vb in _vbuckets(lake))
        expected = rows_at(cluster, (state for state in states if state is not None), replica)
        assert table_rows(lake, applied.version, replica) == expected, f"{applied} differs"
    return len(versions)


def _vbuckets(lake: LakeTables) -> range:
    return range(lake.identity.vbucket_count)


def require_live_exact(lake: LakeTables, cluster: ProducerCluster, round_number: int) -> None:
    """Compare ``docs_live`` with the producer at the complete seqnos of the newest round."""
    view = docs_live_sql(lake.table_sql(DOCS.name), lake.changes_sql, DOCS)
    found = rows_of(lake, f"({view})")
    assert found == source_rows(cluster, complete_seqnos(lake, round_number))


def require_no_row_twice(lake: LakeTables) -> None:
    """Every document row is in ``changes`` once, and each round has one position per vbucket."""
    for what, keys in (
        (is_kind(*ITEM_KINDS), "epoch, vbucket, seqno"),
        (is_kind(RowKind.POSITION), "round, vbucket"),
    ):
        found = lake.changes.rows(keys, what)
        twice = {place: times for place, times in Counter(map(_place, found)).items() if times > 1}
        assert not twice


def durable_seqnos(lake: LakeTables) -> dict[int, list[int]]:
    """Return the seqnos of the document rows in ``changes``, by vbucket."""
    rows = lake.changes.rows("vbucket, seqno", is_kind(*ITEM_KINDS))
    found: dict[int, list[int]] = {}
    for vbucket, seqno in sorted((row["vbucket"], int(row["seqno"])) for row in rows):
        found.setdefault(vbucket, []).append(seqno)
    return found


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.values())
