"""Exports a lake's figures in Prometheus' text format.

Labels are bounded: bucket, lake, tables, reasons, stages. Metrics give times, not ages: a file of
metrics may be read late.
"""

from dataclasses import replace
from typing import Final

from dcp.lake.monitor.lake_figures import LakeFigures
from dcp.lake.task_board.task_metrics import TASK_METRICS, newest_by_label
from dcp.prometheus import exposition, metrics

_LABELS: Final = {"bucket": "bucket", "lake": "lake_id"}
LAKE_METRICS: Final = metrics(
    _LABELS,
    """
dcplake_lag_seqnos replicas[table=table].lag_seqnos
    Seqnos between what a replica table shows and the newest known ones, summed over all vbuckets.
    Collections share a vbucket's seqnos. While nobody drives the lake, a lag of 0 has no sample.
dcplake_lag_seconds replicas[table=table].lag_seconds
    How long the lake has known of the oldest change that a replica table lacks; 0 if it lacks none.
    While nobody drives the lake, a lag of 0 has no sample.
dcplake_last_contact_timestamp_seconds last_contact.time
    When a driver last asked the cluster what it holds; it notes that once a minute.
dcplake_last_contact_behind_seqnos last_contact.behind
    Seqnos that the lake lacked at that contact. No sample if only a newer round shows the contact.
dcplake_round                        round              The newest committed round.
dcplake_last_round_timestamp_seconds newest_round.time
    When the newest round was committed.
dcplake_round_rows                   newest_round.rows
    Document rows of the newest round.
dcplake_round_received_bytes         newest_round.bytes
    Bytes of the newest round on the wire.
dcplake_round_window_full_ratio      newest_round.window_full[stage]
    Part of the newest round's time in which nodes could send nothing, by the stage that was waited
    for.
dcplake_table_round replicas[table=table].status.round
    Round that a replica table was last brought to.
dcplake_last_apply_timestamp_seconds replicas[table=table].status.applied_at
    When a replica table was last applied to.
dcplake_rollbacks_total rollbacks
    Rollbacks that the cluster has ordered since the lake was made. Each vbucket counts.
dcplake_stuck_vbuckets stuck_by_reason[reason]
    Vbuckets that the newest round could not bring further, by reason.
dcplake_waiting_vbuckets waiting
    Vbuckets whose newest rows wait for the end of their snapshot.
dcplake_stale_vbuckets replicas[table=table].stale
    Vbuckets that a replica table shows as they were, until they are streamed whole.
dcplake_table_version tables[table=table].version     The newest version of a table.
dcplake_table_bytes   tables[table=table].size.bytes  Bytes of that version's data files.
dcplake_table_files   tables[table=table].size.files  Data files of that version.
""",
)


_OF_TASKS: Final = tuple(
    replace(each, path=f"tasks[task=label].{each.path}", labels=_LABELS) for each in TASK_METRICS
)


def lake_exposition(lake: LakeFigures) -> str:
    shown = replace(lake, tasks=newest_by_label(lake.tasks))
    return exposition((LAKE_METRICS + _OF_TASKS, [shown]))
