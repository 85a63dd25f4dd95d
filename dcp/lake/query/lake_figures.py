"""Reads a lake's figures from its newest round and from the histories of its tables.

It does not ask the cluster: the newest round's plan says what the cluster held.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any

from dcp.lake.change_log.applied import ReplicaStatus, shown_stale
from dcp.lake.change_log.changes import newest_round, round_time
from dcp.lake.change_log.last_contact import LastContact, last_contact
from dcp.lake.change_log.round_queries import round_record
from dcp.lake.tables.history import TableCommit
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.lake.tables.round_record import VbucketReport
from dcp.records import UNSTORED


@dataclass(frozen=True, slots=True)
class LakeFigures:
    """The figures that `dcplake status`, the metrics and the page share."""

    bucket: str
    lake_id: Annotated[str, "lake"]
    vbuckets: int
    round: int
    waiting: Annotated[tuple[int, ...], UNSTORED]
    """Vbuckets whose newest rows wait for the end of a snapshot."""
    stuck: Annotated[tuple[VbucketReport, ...], UNSTORED]
    """Vbuckets that the newest round could not advance, each with its reason."""
    rollbacks: int
    """The number of rollbacks that producers ordered; each order is for one vbucket."""
    replicas: tuple[ReplicaStatus, ...]
    stale: Annotated[Mapping[str, tuple[int, ...]], UNSTORED]
    """By replica table, the vbuckets that it shows as of an older round until they are whole."""
    round_at: datetime | None
    """None before the first round, or if the history has forgotten it."""
    last_contact: LastContact | None
    """None if no driver has asked the cluster."""

    def is_driven(self, at: datetime) -> bool:
        """Return whether a driver watches the cluster. Otherwise the cluster's state is unknown."""
        return self.last_contact is not None and not self.last_contact.is_overdue(at)

    def parts(self) -> dict[str, Any]:
        """Return the fields by name, for the constructor of a class with more fields."""
        return {each.name: getattr(self, each.name) for each in fields(LakeFigures)}


def lake_figures(
    lake: LakeTables,
    commits: Sequence[TableCommit],
    statuses: Mapping[ReplicaTable, ReplicaStatus],
) -> LakeFigures:
    """Return the figures from the newest commits of ``changes`` and the status of each replica.

    Raises:
        LakeError: the newest round's record is damaged.
    """
    newest = newest_round(lake, commits)
    round_at = round_time(lake, newest, commits) if newest else None
    record = round_record(lake, newest)
    states = sorted(record.states.items())
    return LakeFigures(
        bucket=lake.identity.bucket,
        lake_id=lake.identity.lake_id,
        vbuckets=lake.identity.vbucket_count,
        round=newest,
        waiting=tuple(vb for vb, state in states if not state.position.is_complete),
        stuck=tuple(each for each in record.reports if each.failed or each.reason),
        rollbacks=sum(state.rollbacks for _, state in states),
        replicas=tuple(statuses.values()),
        stale={
            status.table: tuple(sorted(shown_stale(status, record.states)))
            for status in statuses.values()
        },
        round_at=round_at,
        last_contact=last_contact(lake.store, round_at),
    )
