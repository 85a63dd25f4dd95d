"""Decides which rows of the log an apply publishes, and from which older versions lost rows come.

The rules are in `dcp.lake.apply.slice_rules`. Only a read shows that a version is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from dcp.lake.apply.apply_plan import RowBudget
from dcp.lake.apply.apply_rows import old_rows, with_held_keys
from dcp.lake.apply.replica_facts import LakeFacts
from dcp.lake.apply.slice_rules import slice_between
from dcp.lake.log.applied import ReplicaStatus
from dcp.lake.log.slice_keys import Keys
from dcp.lake.log.slice_rows import touched_keys
from dcp.lake.store.log_slice import LogSlice
from dcp.lake.store.table import Table
from dcp.lake.tables.tables import LakeTables, ReplicaTable


@dataclass(frozen=True, slots=True)
class ReadableSlice:
    """A slice of the log for an apply, which goes back to readable versions alone."""

    log_slice: LogSlice
    keys: Keys | None
    """The keys that it may touch; None: too many."""
    olds: Sequence[pa.Table | None] = field(repr=False)
    """The rows of lost keys in the versions that it goes back to; None for too many bytes."""


def readable_slice(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    to_round: int,
    log_version: int,
    budget: RowBudget,
) -> ReadableSlice | None:
    """Return the slice that brings a replica to a round by old versions that can be read.

    Only the keys tell which old rows it needs; each failure rules a version out.
    """
    facts, table = LakeFacts(lake, replica, status), lake.table(replica.name)
    while True:
        log_slice = slice_to_publish(lake, replica, status, to_round, facts)
        if log_slice is None:
            return None
        known = [_keys(lake, replica, status.version, log_version, log_slice, budget.rows)]
        revived = {vb: log_slice.restored[vb] for vb in log_slice.revived}
        if not facts.try_to_read(revived, partial(_read_held_keys, table, known, budget.rows)):
            continue
        keys = known[-1]
        if keys is None:
            if facts.try_to_read(log_slice.restored, facts.read_keys):
                return ReadableSlice(log_slice, None, ())
            continue
        olds: list[pa.Table | None] = []
        needed = {each.vbucket for each in keys.lost}
        restored = {vb: version for vb, version in log_slice.restored.items() if vb in needed}
        if facts.try_to_read(restored, partial(_read_old_rows, table, keys, olds, budget.bytes)):
            return ReadableSlice(log_slice, keys, olds)


def _keys(
    lake: LakeTables,
    replica: ReplicaTable,
    version: int,
    log_version: int,
    log_slice: LogSlice,
    most: int,
) -> Keys | None:
    """Return the keys that a slice may touch, without revived ones; None: too many.

    For an emptied vbucket these are all keys that the table has.
    """
    keys = touched_keys(lake.changes, log_version, replica.collection_id, log_slice, most)
    if keys is None:
        return None
    table = lake.table(replica.name)
    return with_held_keys(keys, table, version, log_slice.emptied, most)


def _read_held_keys(
    table: Table, known: list[Keys | None], most: int, version: int, vbuckets: Sequence[int]
) -> None:
    if (keys := known[-1]) is not None:
        known.append(with_held_keys(keys, table, version, vbuckets, most))


def _read_old_rows(
    table: Table,
    keys: Keys,
    olds: list[pa.Table | None],
    most_bytes: int,
    version: int,
    vbuckets: Sequence[int],
) -> None:
    names = [each.key for each in keys.lost if each.vbucket in vbuckets]
    olds.append(old_rows(table, version, vbuckets, names, most_bytes))


def slice_to_publish(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    to_round: int,
    facts: LakeFacts | None = None,
) -> LogSlice | None:
    """Return the slice that brings a replica to ``to_round``; None if nothing is to be done.

    Rows that waited at the last apply count: their snapshot may have ended since.
    """
    if status.round >= to_round:
        return None
    facts = facts or LakeFacts(lake, replica, status)
    log_slice = slice_between(status.held, to_round, facts)
    return log_slice if log_slice.has_work or log_slice.stale != status.held.stale else None
