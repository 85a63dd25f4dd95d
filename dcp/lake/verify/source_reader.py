"""Reads vbuckets of the source for a verification, and notes those that could not be compared."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dcp.client.probe import ProbedCluster
from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.rounds.lake_state import LakeState, require_same_bucket, tasks_at_once
from dcp.lake.rounds.observer import RoundProgress, round_progress
from dcp.lake.rounds.round_plan import Idle, LeftOut, TaskPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.spark.failures import spark_errors
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import spark_ddl
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.lake.verify.stream import SOURCE_ROWS, StreamEnding, read_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")


ShowPass = Callable[[str, int, int, RoundProgress | None], AbstractContextManager[object]]
"""Shows a pass while the context is open.

The arguments are its name, the numbers of its vbuckets and seqnos, and its progress, if known.
"""


class SourceReader:
    """Streams vbuckets from their beginning, as often as it is asked to.

    ``not_compared`` has the vbuckets that cannot be compared, with the first reason.
    """

    def __init__(
        self,
        lake: LakeTables,
        settings: Settings,
        access: SourceAccess,
        probe: Callable[[], ProbedCluster],
        lake_state: LakeState,
        show_pass: ShowPass,
    ) -> None:
        """``probe`` asks the cluster; ``lake_state`` gives the vbuckets' starts and the filter."""
        self.lake = lake
        self.document_filter = lake_state.document_filter
        self.not_compared: dict[int, LeftOut] = {}
        self._settings = settings
        self._access = access
        self._probe = probe
        self._show_pass = show_pass
        self._starts = {
            vbucket: replace(
                LakeVbucketState.beginning(vbucket),
                failover_log=state.failover_log,
                filter_fingerprint=self.document_filter.fingerprint,
                start_seqno=state.start_seqno,
            )
            for vbucket, state in lake_state.states.items()
        }

    def read(
        self, pass_name: str, vbuckets: frozenset[int], question: Callable[["DataFrame"], T]
    ) -> T:
        """Stream some vbuckets and return the answer to ``question``, which is asked once.

        Raises:
            AuthenticationError, BucketError, NodeUnavailableError: the cluster cannot be read.
            DcplakeError: Spark failed.
        """
        cluster = self._probe()
        require_same_bucket(self.lake, cluster, self._settings.source.bucket)
        tasks = self._plan(cluster, vbuckets)
        streams = sum(len(task.streams) for task in tasks)
        backlog = sum(task.backlog for task in tasks)
        with (
            round_progress(is_local=self.lake.store.slots > 0) as progress,
            self._show_pass(pass_name, streams, backlog, progress),
        ):
            read = read_function(self.lake.identity.lake_id, tasks, self._access, progress)
            count = len(tasks)
            numbers = self.lake.spark.range(0, count, 1, max(1, count))
            source = numbers.mapInArrow(read, spark_ddl(SOURCE_ROWS))
            with spark_errors("verify failed in Spark"):
                return question(source)

    def leave_out(self, vbuckets: Collection[LeftOut]) -> None:
        for left in vbuckets:
            self.not_compared.setdefault(left.vbucket, left)

    def leave_out_failed(self, endings: Sequence[StreamEnding]) -> None:
        failed = (each for each in endings if each.reason)
        self.leave_out([LeftOut(each.vbucket, each.reason, each.detail) for each in failed])

    def readable(self, vbuckets: Collection[int]) -> frozenset[int]:
        return frozenset(vbuckets) - self.not_compared.keys()

    def _plan(self, cluster: ProbedCluster, vbuckets: frozenset[int]) -> tuple[TaskPlan, ...]:
        """Spread the streams over tasks; note the vbuckets that have no node to stream from.

        Vbuckets without documents at the source need no stream.
        """
        targets = {v: seqno for v, seqno in cluster.high_seqnos.items() if v in vbuckets}
        lake_id = self.lake.identity.lake_id
        lake_state = LakeState(lake_id, 0, self._starts, document_filter=self.document_filter)
        slots = tasks_at_once(self.lake)
        settings = self._settings
        plan = plan_round(
            lake_state,
            cluster,
            settings.round,
            settings.flow_control,
            slots,
            targets=targets,
        )
        self.leave_out([left for left in plan.left_out if left.vbucket in vbuckets])
        return () if isinstance(plan, Idle) else plan.tasks
