"""Exports a lake's figures in Prometheus' text format.

Labels are bounded: bucket, lake, tables, reasons, stages. A time is a metric of its own, and no
age: what reads a file of metrics may read it late.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from prometheus_client.samples import Sample

from dcp.lake.monitor.figures import FullFigures
from dcp.prometheus import Metrics

LAKE_METRICS: Final[Metrics] = {
    "dcplake_lag_seqnos": (
        "Seqnos between what a replica table shows and the newest known ones, of all vbuckets; "
        "collections share a vbucket's seqnos."
    ),
    "dcplake_lag_seconds": (
        "How long the oldest change that a replica table lacks is known; 0: it lacks none."
    ),
    "dcplake_round": "The newest committed round.",
    "dcplake_last_round_timestamp_seconds": "When it was committed.",
    "dcplake_round_rows": "Document rows that it brought.",
    "dcplake_round_received_bytes": "Their bytes on the wire.",
    "dcplake_round_window_full_ratio": (
        "Part of its time in which nodes could send nothing, by the stage that was waited for."
    ),
    "dcplake_table_round": "Round that a replica table was last brought to.",
    "dcplake_last_apply_timestamp_seconds": "When that was.",
    "dcplake_rollbacks_total": (
        "Rollbacks that the cluster has ordered since the lake was made, by vbucket."
    ),
    "dcplake_stuck_vbuckets": "Vbuckets that the newest round could not bring further, by reason.",
    "dcplake_waiting_vbuckets": "Vbuckets whose newest rows wait for the end of their snapshot.",
    "dcplake_stale_vbuckets": (
        "Vbuckets that a replica table shows as they were, until they are streamed whole."
    ),
    "dcplake_table_version": "The newest version of a table.",
    "dcplake_table_bytes": "Bytes of that version's data files.",
    "dcplake_table_files": "Data files of that version.",
}


def lake_samples(lake: FullFigures, at: datetime) -> Iterator[Sample]:
    for sample in _samples(lake, at):
        yield sample._replace(labels={"bucket": lake.bucket, "lake": lake.lake_id, **sample.labels})


def _samples(lake: FullFigures, at: datetime) -> Iterator[Sample]:
    yield Sample("dcplake_round", {}, lake.round)
    for round_figures in lake.rounds[:1]:
        yield from _time("dcplake_last_round_timestamp_seconds", {}, round_figures.time)
        yield Sample("dcplake_round_rows", {}, round_figures.rows)
        yield Sample("dcplake_round_received_bytes", {}, round_figures.bytes)
        for stage, share in round_figures.window_full.items():
            yield Sample("dcplake_round_window_full_ratio", {"stage": stage or "unknown"}, share)
    for replica in lake.replicas:
        table = {"table": replica.table}
        yield Sample("dcplake_lag_seqnos", table, lake.lags[replica.table].seqnos(lake.highs))
        yield Sample("dcplake_lag_seconds", table, lake.lags[replica.table].seconds(at))
        yield Sample("dcplake_table_round", table, replica.round)
        yield from _time("dcplake_last_apply_timestamp_seconds", table, replica.applied_at)
        yield Sample("dcplake_stale_vbuckets", table, len(replica.stale))
    yield Sample("dcplake_rollbacks_total", {}, lake.rollbacks)
    reasons = [each.reason for each in lake.stuck]
    for reason in sorted(set(reasons)):
        yield Sample("dcplake_stuck_vbuckets", {"reason": reason}, reasons.count(reason))
    yield Sample("dcplake_waiting_vbuckets", {}, len(lake.waiting))
    for each in lake.tables:
        table = {"table": each.table}
        yield Sample("dcplake_table_version", table, each.version)
        yield Sample("dcplake_table_bytes", table, each.size.bytes)
        yield Sample("dcplake_table_files", table, each.size.files)


def _time(metric: str, labels: dict[str, str], time: datetime | None) -> Iterator[Sample]:
    if time is not None:
        yield Sample(metric, labels, time.timestamp())
