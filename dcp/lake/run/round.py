"""Runs one round: receives its streams, commits one append, and reads the commit back."""

from time import monotonic
from typing import Final

from pyspark.sql import DataFrame

from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.log.changes import append_round
from dcp.lake.log.round_records import round_record
from dcp.lake.log.stop_points import reached
from dcp.lake.receive.round_tasks import receive_function
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.rounds.planning import SEQNOS_OF_A_TASK
from dcp.lake.rounds.progress import RoundProgress
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.spark.failures import spark_errors
from dcp.lake.tables.data_file import FileContents
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS, spark_ddl
from dcp.lake.tables.tables import CHANGES_TABLE, LakeTables
from dcp.lake.tables.task_files import BatchFunction, TaskFiles, place_of_files
from dcp.lake.tables.transaction import FEW_ROWS, session_settings_for_a_while

_FILES: Final = FileContents(CHANGES, CHANGES_STATISTICS, MEBIBYTE)
"""A batch of that size is written at once: it is no longer held then (docs/memory.md)."""


def run_round(
    lake: LakeTables,
    plan: RoundPlan,
    access: SourceAccess,
    writer_id: str,
    progress: RoundProgress | None = None,
) -> RoundReport:
    """Stream what the plan says into one append of ``changes``, and report it.

    Raises:
        FencedError: another driver writes to this lake.
        AuthenticationError, BucketError: the source refused user, password or bucket.
        DcplakeError: Spark failed for another reason; the same round can be run again.

    """
    begin = monotonic()
    reached("round.planned")
    access = access.of_bucket(lake.identity.bucket_uuid)
    rows = _rows(lake, len(plan.tasks), receive_function(plan, access, progress))
    settings = FEW_ROWS if plan.backlog < SEQNOS_OF_A_TASK else {}
    with (
        spark_errors(f"round {plan.round} failed, nothing of it is committed"),
        session_settings_for_a_while(lake.spark, settings),
    ):
        commit = append_round(lake, rows, plan.round, writer_id)
    reached("round.read_back")
    seconds = monotonic() - begin
    return RoundReport.of(plan, commit.version, seconds, streamed_reports(lake, plan.round))


def _rows(lake: LakeTables, tasks: int, receive: BatchFunction) -> DataFrame | TaskFiles:
    """Return what the tasks receive: in files of the log where they can write them themselves."""
    each_task = lake.spark.range(0, tasks, 1, tasks)
    if (place := place_of_files(lake, CHANGES_TABLE)) is not None:
        return TaskFiles(each_task, receive, place, _FILES)
    return each_task.mapInArrow(receive, spark_ddl(CHANGES))


def streamed_reports(lake: LakeTables, round_number: int) -> tuple[VbucketReport, ...]:
    """Return what a round tells of the vbuckets that it streamed."""
    reports = round_record(lake, round_number).reports
    return tuple(report for report in reports if report.outcome is not Outcome.LEFT_OUT)
