"""Runs one round: receives its streams, commits one append, and reads the commit back."""

from time import monotonic

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
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.tables import LakeTables


def run_round(
    lake: LakeTables,
    plan: RoundPlan,
    access: SourceAccess,
    writer_id: str,
    progress: RoundProgress | None = None,
) -> RoundReport:
    """Stream a plan into one append of ``changes``, and report it.

    Raises:
        FencedError: another driver writes to this lake.
        AuthenticationError, BucketError: the source refused user, password or bucket.
        DcplakeError: Spark failed for another reason; the same round can be run again.
    """
    begin = monotonic()
    reached("round.planned")
    access = access.of_bucket(lake.identity.bucket_uuid)
    receive = receive_function(plan, access, progress)
    are_few = plan.backlog < SEQNOS_OF_A_TASK
    rows = lake.store.new_changes(len(plan.tasks), receive, are_few=are_few)
    with spark_errors(f"round {plan.round} failed, nothing of it is committed"):
        commit = append_round(lake, rows, plan.round, writer_id)
    reached("round.read_back")
    seconds = monotonic() - begin
    reports = round_record(lake, plan.round).reports
    streamed = (report for report in reports if report.outcome is not Outcome.LEFT_OUT)
    return RoundReport(plan.round, commit.version, seconds, tuple(streamed), plan.left_out)
