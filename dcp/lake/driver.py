"""One driver of one lake: plans, rounds and applies in the order that makes a run.

It can be killed at any instant: each step begins by reading what is durable.
"""

import secrets
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from dcp.client.probe import ClusterView
from dcp.errors import (
    AuthenticationError,
    BucketError,
    IncompleteRunError,
    RemoteProtocolError,
    SourceError,
    StoppedError,
)
from dcp.lake.applied import AppliedVersion, replica_status
from dcp.lake.apply import plan_apply, run_apply
from dcp.lake.audit import write_audit
from dcp.lake.bounded_run import BoundedRun
from dcp.lake.cadence import is_due, pending_of
from dcp.lake.collections import replicas_of
from dcp.lake.connect import look_at_cluster
from dcp.lake.horizon import Horizon
from dcp.lake.horizon_guard import HorizonGuard
from dcp.lake.observer import NEXT_ROUND, Observer
from dcp.lake.plan import Idle, LeftOut, RoundPlan
from dcp.lake.plan_text import left_out_lines
from dcp.lake.planning import next_round, require_same_bucket, stale_vbuckets
from dcp.lake.progress import round_progress
from dcp.lake.receive import SourceAccess
from dcp.lake.round import RoundReport, run_round
from dcp.lake.session import session_slots
from dcp.lake.settings import Settings
from dcp.lake.stop_points import reached
from dcp.lake.tables import LakeTables, ReplicaTable, ensure_replica, replicas_in


@dataclass(slots=True)
class RunReport:
    """What a run did."""

    rounds: list[RoundReport] = field(default_factory=list)
    applied: list[AppliedVersion] = field(default_factory=list)
    left_out: tuple[LeftOut, ...] = ()


class Driver:
    """One driver of one lake. Its writer id is in every commit it makes."""

    def __init__(
        self, lake: LakeTables, settings: Settings, access: SourceAccess, observer: Observer
    ) -> None:
        self.lake = lake
        self.writer_id = secrets.token_hex(8)
        self._settings = settings
        self._access = access
        self._observer = observer
        self._replicas: tuple[ReplicaTable, ...] = ()
        self._ensured: set[ReplicaTable] = set()
        self._newest: dict[str, AppliedVersion] = {}
        self._report = RunReport()
        self._guard = HorizonGuard(lake, Horizon.of_hours(settings.lake.horizon_hours))

    def once(self, cluster: ClusterView, stop: threading.Event) -> RunReport:
        """Run rounds until the seqnos of ``cluster`` are complete, then apply.

        Raises:
            IncompleteRunError: some vbuckets could not be read; all else is committed and applied.
            StoppedError: ``stop`` came first; what was read is committed.

        """
        bounds = BoundedRun(cluster)
        while True:
            plan = self.plan(cluster, targets=bounds.goals, skip=bounds.given_up)
            if isinstance(plan, Idle):
                if self.apply(plan.latest_round, force=True):
                    continue  # what could not be taken back must be streamed again
                self._report.left_out = (*plan.left_out, *self._stale(plan.left_out))
                self._observer.idle(plan)
                _refuse_incomplete(self._report.left_out)
                return self._report
            if stop.is_set():
                raise StoppedError(
                    "the run was asked to stop before it had read all that the cluster held at its "
                    "start; what it has read is committed, the next run goes on from there"
                )
            report = self.round(plan)
            bounds.learn(plan, report)
            self.apply(report.round, force=False)
            cluster = look_at_cluster(self._access)
            bounds.look(cluster)

    def continuously(self, stop: threading.Event) -> RunReport:
        """Run a round whenever there is something to do, at most one each minimum interval.

        A cluster that cannot be looked at is looked at again, until it refuses us for good.

        Raises:
            AuthenticationError, BucketError: user, password or bucket are refused.

        """
        interval = self._settings.round.minimum_interval_seconds
        while not stop.is_set():
            begin = monotonic()
            reason = NEXT_ROUND
            try:
                cluster = look_at_cluster(self._access)
            except (AuthenticationError, BucketError):
                raise
            except (SourceError, RemoteProtocolError) as error:
                reason = f"the cluster: {error}"
            else:
                plan = self.plan(cluster)
                if isinstance(plan, Idle):
                    self._observer.idle(plan)
                    newest = plan.latest_round
                else:
                    newest = self.round(plan).round
                self.apply(newest, force=False)
                # This run has no end: of what it did, only the newest is kept.
                self._report.rounds = self._report.rounds[-1:]
                self._report.applied = self._report.applied[-1:]
            wait_seconds = max(0.0, interval - (monotonic() - begin))
            if wait_seconds and not stop.is_set():
                self._observer.waiting(wait_seconds, reason)
                stop.wait(wait_seconds)
        return self._report

    def plan(
        self,
        cluster: ClusterView,
        targets: Mapping[int, int] | None = None,
        skip: Mapping[int, LeftOut] | None = None,
    ) -> RoundPlan | Idle:
        """Return what the next round does, from what is durable and what the cluster holds.

        Raises:
            LakeError: the cluster's bucket is not the one that the lake holds, or somebody changed
                the log behind our back.

        """
        require_same_bucket(self.lake, cluster, self._settings.source.bucket)
        self._ensure_replicas(cluster)
        self._guard.look(self._replicas)
        if self._settings.apply.when == "never":  # somebody else applies, meanwhile too
            self._learn_newest(self._replicas)
        return next_round(
            self.lake,
            self._replicas,
            cluster,
            self._settings,
            stale=stale_vbuckets(self._newest.values()),
            targets=targets,
            skip=skip,
        )

    def round(self, plan: RoundPlan) -> RoundReport:
        """Run one round and tell of it."""
        with round_progress(is_local=session_slots(self.lake.spark) > 0) as progress:
            self._observer.planned(plan, progress)
            report = run_round(self.lake, plan, self._access, self.writer_id, progress)
        self._report.rounds.append(report)
        self._observer.committed(report)
        return report

    def apply(self, to_round: int, *, force: bool) -> list[AppliedVersion]:
        """Apply what is pending up to ``to_round``, the newest one, if it is due.

        ``force`` makes it due unless `when` is never.
        """
        rule = self._settings.apply
        if rule.when == "never":
            return []
        made = []
        for replica in self._replicas:
            due = force or rule.when == "every_round"
            if not due and not is_due(rule, pending_of(self.lake, replica)):
                continue
            plan = plan_apply(self.lake, replica, to_round, key_literals=rule.key_literals)
            if plan is None:
                continue
            reached("apply.planned")
            version = run_apply(self.lake, plan, self.writer_id)
            made.append(version)
            self._newest[replica.name] = version
            if version.undone:
                keys = None if plan.keys is None else plan.keys.names
                write_audit(self.lake, replica_status(self.lake, replica), keys)
            self._observer.applied(version)
        self._report.applied += made
        return made

    def _ensure_replicas(self, cluster: ClusterView) -> None:
        """Make the tables of new collections; those of dropped ones go on being applied to.

        They bring no rows, but the log is kept for as long as a table stands at an old round.
        """
        wanted = [each for each in replicas_of(cluster.manifest) if each not in self._ensured]
        for replica in wanted:
            ensure_replica(
                self.lake,
                replica,
                horizon_hours=self._settings.lake.horizon_hours,
                deletion_vectors=self._settings.lake.deletion_vectors,
            )
        if wanted:
            self._ensured.update(wanted)
            known = set(self._replicas)
            self._replicas = replicas_in(self.lake)
            self._learn_newest(each for each in self._replicas if each not in known)

    def _stale(self, known: Collection[LeftOut]) -> tuple[LeftOut, ...]:
        """Return the vbuckets that a table still shows as they were, unless another job applies."""
        if self._settings.apply.when == "never":
            return ()
        told = {left.vbucket for left in known}
        detail = "a table shows its old rows until it is streamed whole"
        stale = stale_vbuckets(self._newest.values())
        return tuple(LeftOut(vb, "stale", detail) for vb in sorted(stale) if vb not in told)

    def _learn_newest(self, replicas: Iterable[ReplicaTable]) -> None:
        """Look where tables stand; write the audit that a driver may have died before."""
        for replica in replicas:
            status = replica_status(self.lake, replica)
            if status.applied is not None:
                self._newest[replica.name] = status.applied
                write_audit(self.lake, status)


def _refuse_incomplete(left_out: tuple[LeftOut, ...]) -> None:
    if left_out:
        raise IncompleteRunError(
            f"{len(left_out)} vbuckets could not be read to where they were at the start; "
            "all others are committed and applied\n" + "\n".join(left_out_lines(left_out))
        )
