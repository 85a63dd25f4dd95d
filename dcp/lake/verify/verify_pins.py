"""Pins what a verification compares: each replica at one version, each vbucket up to one seqno.

A replica's version holds every vbucket at its complete seqno in the round that was applied last.
What the source has above it is not the replica's business yet: it waits for a round or an apply.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dcp.lake.log.applied import ReplicaStatus, replica_status
from dcp.lake.log.round_records import positions_at
from dcp.lake.receive.arrow_columns import integer_column, u64_column
from dcp.lake.rounds.round_plan import LeftOut
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.tables import LakeTables, ReplicaTable


@dataclass(frozen=True, slots=True)
class Pin:
    replica: ReplicaTable
    held: AppliedVersion
    complete: Mapping[int, int]
    """The complete seqno of each vbucket to compare."""
    unpinned: tuple[int, ...] = ()
    """The version holds no complete state of these vbuckets."""


def pinned_seqnos(
    lake: LakeTables, replica: ReplicaStatus, document_filter: DocumentFilter
) -> dict[int, int]:
    """Return the seqno up to which each vbucket of a replica's version equals the source.

    A missing vbucket is reported as not compared. It is missing, for one, if it was read with
    another filter: this one decides which documents of the source count.
    """
    if replica.round == 0:  # before the first apply nothing is promised
        return dict.fromkeys(range(lake.identity.vbucket_count), 0)
    states = positions_at(lake, replica.round)
    stale = replica.held.stale
    return {
        vbucket: state.complete_seqno
        for vbucket, state in states.items()
        if vbucket not in stale and document_filter.has_read(state)
    }


def pin_replicas(
    lake: LakeTables,
    replicas: Sequence[ReplicaTable],
    vbuckets: Collection[int],
    kept: Mapping[int, frozenset[int]],
    document_filter: DocumentFilter,
) -> tuple[Pin, ...]:
    """Return the newest version of each replica, with the seqnos of these vbuckets.

    Vbuckets in ``kept``, by collection, hold rows that the source has dropped, and are left out.
    """
    pins = []
    for replica in replicas:
        chosen = sorted(set(vbuckets) - kept.get(replica.collection_id, frozenset()))
        status = replica_status(lake, replica)
        seqnos = pinned_seqnos(lake, status, document_filter)
        complete = {vbucket: seqnos[vbucket] for vbucket in chosen if vbucket in seqnos}
        unpinned = tuple(vbucket for vbucket in chosen if vbucket not in seqnos)
        pins.append(Pin(replica, status.held, complete, unpinned))
    return tuple(pins)


def unpinned_vbuckets(pins: Sequence[Pin]) -> list[LeftOut]:
    """Return the vbuckets that cannot be compared, with the table that lacks their state."""
    return [
        LeftOut(
            vbucket,
            "stale",
            f"{pin.replica.name} waits for its first complete snapshot after a rollback, or with "
            "another [filter]",
        )
        for pin in pins
        for vbucket in pin.unpinned
    ]


def pins_table(pins: Sequence[Pin]) -> pa.Table:
    entries = [
        (pin.replica.collection_id, vbucket, seqno)
        for pin in pins
        for vbucket, seqno in pin.complete.items()
    ]
    collections, vbuckets, seqnos = zip(*entries, strict=True) if entries else ((), (), ())
    return pa.table(
        {
            "collection_id": integer_column(np.array(collections, np.int64), pa.int64()),
            "vbucket": integer_column(np.array(vbuckets, np.int32), pa.int32()),
            "complete_seqno": u64_column(np.array(seqnos, np.uint64)),
        }
    )
