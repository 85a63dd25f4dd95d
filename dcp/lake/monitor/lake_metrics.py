"""Exports a lake's figures in Prometheus' text format.

Labels are bounded: bucket, lake, tables, reasons, stages. Metrics give times, not ages: a file of
metrics may be read late.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client.samples import Sample

from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.monitor.figures import FullFigures, RoundFigures, TableFigures
from dcp.prometheus import exposition_of

_Figure = float | datetime | None
"""Times become seconds since 1970; None is left out."""


@dataclass(frozen=True, slots=True)
class LakeMetric:
    """A metric of a lake; its type follows from its name (`dcp.prometheus.Metrics`)."""

    meaning: str
    find: Callable[[FullFigures, datetime], Iterable[tuple[str, _Figure]]]
    """Finds the figures, as of a time, each with the value of its label."""
    label: str = ""
    """Empty: the metric has no label, and the label's value is empty, too."""


def _of_lake(meaning: str, figure: Callable[[FullFigures], _Figure]) -> LakeMetric:
    return LakeMetric(meaning, lambda lake, _: [("", figure(lake))])


def _of_newest_round(meaning: str, figure: Callable[[RoundFigures], _Figure]) -> LakeMetric:
    return LakeMetric(meaning, lambda lake, _: [("", figure(each)) for each in lake.rounds[:1]])


def _of_replicas(meaning: str, figure: Callable[[ReplicaStatus], _Figure]) -> LakeMetric:
    return LakeMetric(
        meaning, lambda lake, _: [(each.table, figure(each)) for each in lake.replicas], "table"
    )


def _of_tables(meaning: str, figure: Callable[[TableFigures], _Figure]) -> LakeMetric:
    return LakeMetric(
        meaning, lambda lake, _: [(each.table, figure(each)) for each in lake.tables], "table"
    )


LAKE_METRICS: Final[Mapping[str, LakeMetric]] = {
    "dcplake_lag_seqnos": LakeMetric(
        "Seqnos between what a replica table shows and the newest known ones, summed over all "
        "vbuckets. Collections share a vbucket's seqnos. While nobody drives the lake, a lag of 0 "
        "has no sample.",
        lambda lake, at: [(table, lake.lag_seqnos(table, at)) for table in lake.lags],
        "table",
    ),
    "dcplake_lag_seconds": LakeMetric(
        "How long the lake has known of the oldest change that a replica table lacks; 0 if it "
        "lacks none. While nobody drives the lake, a lag of 0 has no sample.",
        lambda lake, at: [(table, lake.lag_seconds(table, at)) for table in lake.lags],
        "table",
    ),
    "dcplake_last_contact_timestamp_seconds": _of_lake(
        "When a driver last asked the cluster what it holds; it notes that once a minute.",
        lambda lake: None if lake.last_contact is None else lake.last_contact.time,
    ),
    "dcplake_last_contact_behind_seqnos": _of_lake(
        "Seqnos that the lake lacked at that contact.",
        lambda lake: None if lake.last_contact is None else lake.last_contact.behind,
    ),
    "dcplake_round": _of_lake("The newest committed round.", lambda lake: lake.round),
    "dcplake_last_round_timestamp_seconds": _of_newest_round(
        "When it was committed.", lambda newest: newest.time
    ),
    "dcplake_round_rows": _of_newest_round(
        "Document rows that it brought.", lambda newest: newest.rows
    ),
    "dcplake_round_received_bytes": _of_newest_round(
        "Their bytes on the wire.", lambda newest: newest.bytes
    ),
    "dcplake_round_window_full_ratio": LakeMetric(
        "Part of its time in which nodes could send nothing, by the stage that was waited for.",
        lambda lake, _: [
            (stage or "unknown", share)
            for newest in lake.rounds[:1]
            for stage, share in newest.window_full.items()
        ],
        "stage",
    ),
    "dcplake_table_round": _of_replicas(
        "Round that a replica table was last brought to.", lambda replica: replica.round
    ),
    "dcplake_last_apply_timestamp_seconds": _of_replicas(
        "When that was.", lambda replica: replica.applied_at
    ),
    "dcplake_rollbacks_total": _of_lake(
        "Rollbacks that the cluster has ordered since the lake was made. Each vbucket counts.",
        lambda lake: lake.rollbacks,
    ),
    "dcplake_stuck_vbuckets": LakeMetric(
        "Vbuckets that the newest round could not bring further, by reason.",
        lambda lake, _: sorted(Counter(each.reason for each in lake.stuck).items()),
        "reason",
    ),
    "dcplake_waiting_vbuckets": _of_lake(
        "Vbuckets whose newest rows wait for the end of their snapshot.",
        lambda lake: len(lake.waiting),
    ),
    "dcplake_stale_vbuckets": LakeMetric(
        "Vbuckets that a replica table shows as they were, until they are streamed whole.",
        lambda lake, _: [(table, len(vbuckets)) for table, vbuckets in lake.stale.items()],
        "table",
    ),
    "dcplake_table_version": _of_tables(
        "The newest version of a table.", lambda table: table.version
    ),
    "dcplake_table_bytes": _of_tables(
        "Bytes of that version's data files.", lambda table: table.size.bytes
    ),
    "dcplake_table_files": _of_tables(
        "Data files of that version.", lambda table: table.size.files
    ),
}


def lake_exposition(lake: FullFigures, at: datetime) -> str:
    meanings = {name: metric.meaning for name, metric in LAKE_METRICS.items()}
    return exposition_of(_samples(lake, at), meanings)


def _samples(lake: FullFigures, at: datetime) -> Iterator[Sample]:
    of_lake = {"bucket": lake.bucket, "lake": lake.lake_id}
    for name, metric in LAKE_METRICS.items():
        for value, figure in metric.find(lake, at):
            labels = of_lake | ({metric.label: value} if metric.label else {})
            if isinstance(figure, datetime):
                yield Sample(name, labels, figure.timestamp())
            elif figure is not None:
                yield Sample(name, labels, figure)
