"""Where a lake stands: its rounds, its replicas, what waits, and what the newest round left out."""

from dataclasses import dataclass
from typing import Any

from dcp.lake.applied import replica_status
from dcp.lake.changes import latest_round
from dcp.lake.plan_text import number_ranges
from dcp.lake.round_record import VbucketReport, round_record
from dcp.lake.tables import LakeTables, ReplicaTable, replicas_in


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    """One replica table: its version, the round it holds, its documents.

    ``defect`` says which commit of others stops every apply; empty if all is well. ``stale`` are
    the vbuckets that it shows as they were at an older round, until they are whole again.
    """

    table: str
    version: int
    round: int
    documents: int
    defect: str
    stale: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """A lake at one moment.

    ``waiting`` are the vbuckets whose newest rows wait for a snapshot's end; ``stuck`` those that
    the newest round could not bring further, or could not stream at all, with its reason. What the
    cluster holds by now is not asked.
    """

    place: str
    lake_id: str
    bucket: str
    vbuckets: int
    round: int
    waiting: tuple[int, ...]
    stuck: tuple[VbucketReport, ...]
    replicas: tuple[ReplicaSummary, ...]

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        return {
            "lake": self.lake_id,
            "place": self.place,
            "bucket": self.bucket,
            "vbuckets": self.vbuckets,
            "round": self.round,
            "waiting_for_snapshot_end": list(self.waiting),
            "stuck": [report.to_json() for report in self.stuck],
            "replicas": [
                {
                    "table": replica.table,
                    "version": replica.version,
                    "round": replica.round,
                    "documents": replica.documents,
                    "defect": replica.defect,
                    "stale": list(replica.stale),
                }
                for replica in self.replicas
            ],
        }

    def __str__(self) -> str:
        """Say it in a few lines."""
        lines = [
            f"lake {self.lake_id} at {self.place}: bucket {self.bucket!r}, {self.vbuckets} "
            f"vbuckets, round {self.round}"
        ]
        for replica in self.replicas:
            behind = self.round - replica.round
            place = f"last applied at round {replica.round}" if behind > 0 else "holds that round"
            lines.append(
                f"  {replica.table}: version {replica.version}, {replica.documents:,} documents, "
                + place
            )
            if replica.defect:
                lines.append(f"    no apply is possible: found {replica.defect} by somebody else")
            if replica.stale:
                lines.append(
                    f"    stale, until they are streamed whole: vbuckets "
                    f"{number_ranges(replica.stale)}"
                )
        if self.waiting:
            lines.append(f"  waiting for their snapshot's end: {len(self.waiting)} vbuckets")
        lines += [
            f"  vbucket {report.vbucket} stands still: {report.reason}: {report.detail}"
            for report in self.stuck
        ]
        return "\n".join(lines)


def lake_status(lake: LakeTables) -> LakeStatus:
    """Read where ``lake`` stands."""
    newest = latest_round(lake)
    record = round_record(lake, newest)
    return LakeStatus(
        place=str(lake.location),
        lake_id=lake.identity.lake_id,
        bucket=lake.identity.bucket,
        vbuckets=lake.identity.vbucket_count,
        round=newest,
        waiting=tuple(
            v for v, state in sorted(record.states.items()) if not state.position.is_complete
        ),
        stuck=tuple(report for report in record.reports if report.failed),
        replicas=tuple(_summary(lake, replica) for replica in replicas_in(lake)),
    )


def _summary(lake: LakeTables, replica: ReplicaTable) -> ReplicaSummary:
    status = replica_status(lake, replica)
    count = lake.spark.sql(f"SELECT count(*) FROM {lake.table_sql(replica.name)}").collect()
    defect = status.lineage.defect(status.version)
    return ReplicaSummary(
        replica.name,
        status.version,
        status.round,
        int(count[0][0]),
        "" if defect is None else str(defect),
        tuple(sorted(status.held.stale)),
    )
