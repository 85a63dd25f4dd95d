"""Drives one lake: plans, rounds and applies in order.

A driver can be killed at any moment. Each step begins by reading the durable state.
"""

import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Final

from dcp.client.probe import ProbedCluster
from dcp.errors import (
    IncompleteRunError,
    RemoteProtocolError,
    SecretError,
    SourceError,
    StoppedError,
)
from dcp.lake.apply.applier import Applier
from dcp.lake.apply.thread import ApplyThread
from dcp.lake.change_log.applied import unindexed_applied
from dcp.lake.change_log.changes import append_round, latest_round
from dcp.lake.change_log.collection_events import dropped_policies
from dcp.lake.change_log.control import Control, paused_by
from dcp.lake.change_log.round_queries import round_record, states_at
from dcp.lake.change_log.stop_points import reached
from dcp.lake.config.settings import ApplyWhen, Settings
from dcp.lake.maintain.horizon_guard import HorizonGuard
from dcp.lake.quality.gate import QualityGate
from dcp.lake.receive.dropped_policies import DroppedPolicies
from dcp.lake.receive.remembered_nodes import RememberedNodes, remembered_text
from dcp.lake.receive.source_access import SourceAccess, query_cluster
from dcp.lake.receive.task_receiver import receive_function
from dcp.lake.rounds.delayed_vbuckets import DelayedVbuckets
from dcp.lake.rounds.lake_state import read_lake_state, require_same_bucket, tasks_at_once
from dcp.lake.rounds.observer import (
    ERASURE,
    NEXT_ROUND,
    Observer,
    RoundProgress,
    Wait,
    round_progress,
)
from dcp.lake.rounds.restarts import refused_rollbacks
from dcp.lake.rounds.round_plan import (
    Idle,
    LeftOut,
    Outlook,
    RoundPlan,
    left_out_lines,
    pause_lines,
)
from dcp.lake.rounds.round_planner import SEQNOS_OF_A_TASK, plan_round
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.bounded_run import BoundedRun
from dcp.lake.run.contact_notes import ContactNotes
from dcp.lake.run.control_requests import Requests
from dcp.lake.run.driver_backfills import DriverBackfills
from dcp.lake.run.driver_erasures import DriverErasures
from dcp.lake.run.outages import Outages
from dcp.lake.run.persistence_gate import PersistenceGate
from dcp.lake.run.repair import only_in_log
from dcp.lake.spark.failures import spark_errors
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.collections import Collections, collections_of, replicas_of
from dcp.lake.tables.document_filter import DocumentFilter, filter_of
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import (
    DOCS,
    LakeTables,
    ReplicaTable,
    ensure_replicas,
    known_replicas,
    remember_nodes,
    replicas_in,
)
from dcp.lake.tables.round_record import Outcome, StuckReason
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.printable import Shown


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
    append = lake.store.new_changes(len(plan.tasks), receive, are_few=are_few)
    with spark_errors(f"round {plan.round} failed, nothing of it is committed"):
        commit = append_round(lake, append, plan.round, writer_id)
    reached("round.read_back")
    seconds = round(monotonic() - begin, 3)
    reports = round_record(lake, plan.round).reports
    streamed = (report for report in reports if report.outcome is not Outcome.LEFT_OUT)
    return RoundReport(plan.round, commit.version, seconds, tuple(streamed), plan.left_out)


_CHECK_SECONDS: Final = 1.0
"""A waiting run checks at this interval whether its applies have failed."""
_STOPPED: Final = (
    "the run was asked to stop before it had read all that the cluster had at its start; what it "
    "has read is committed, the next run goes on from there"
)


@dataclass(slots=True)
class RunReport(Shown):
    rounds: list[RoundReport] = field(default_factory=list)
    applied: list[AppliedVersion] = field(default_factory=list)
    left_out: tuple[LeftOut, ...] = ()
    paused: str = ""
    """Names who paused the lake; empty if it is not paused."""

    def __str__(self) -> str:
        lines = [*map(str, self.rounds), *(f"applied: {each}" for each in self.applied)]
        lines += left_out_lines(self.left_out)
        lines = lines or ["nothing to do: the lake has what the cluster holds"]
        return "\n".join([*lines, *pause_lines(self.paused)])


class Driver:
    """One driver of one lake. Its writer id is in every commit that it makes."""

    def __init__(
        self, lake: LakeTables, settings: Settings, access: SourceAccess, observer: Observer
    ) -> None:
        self.lake = lake
        self.writer_id = secrets.token_hex(8)
        self._settings = settings
        self._access = replace(access, dropped=DroppedPolicies.of_lake(settings.policy, lake))
        self._nodes = RememberedNodes.of(lake)
        self._observer = observer
        self._ensured: set[ReplicaTable] = set()
        self._report = RunReport()
        self._guard = HorizonGuard(lake, Horizon.of_hours(settings.lake.horizon_hours))
        self._gate = QualityGate(settings.quality.gate)
        self._applier = Applier(
            lake,
            settings.apply,
            self.writer_id,
            observer,
            self._guard,
            self._gate.may_publish,
        )
        self._persistence = PersistenceGate(lake, settings, access, self._remembered)
        self._is_applying: Callable[[], bool] = lambda: False
        control = Control(lake)
        self._requests = Requests(lake, control, self.writer_id, only_in_log(settings))
        self._backfills = DriverBackfills(lake, control, access, observer)
        self._erasures = DriverErasures(lake, control, self._applier, self.writer_id, observer)
        self._delayed_vbuckets = DelayedVbuckets(settings.round.minimum_interval_seconds)
        self._contacts = ContactNotes(
            lake.store, settings.round, applies=settings.apply.when is not ApplyWhen.NEVER
        )
        self._outages = Outages()
        self._apply_outages = Outages()
        """The failures of `apply_newest`, which runs in its own thread."""

    def once(
        self,
        cluster: ProbedCluster,
        stop: threading.Event,
        *,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> RunReport:
        """Run rounds until the seqnos of ``cluster`` are complete, then apply.

        It also carries out backfills and erasures. As soon as ``is_enough`` returns true, it
        applies all received rounds and ends.

        The cluster accepted the login before ``cluster`` was read. The run tries again for five
        minutes if a node refuses the login later, if an executor lacks a secret's file, or if the
        lake's store refuses us or does not answer (`Outages`).

        Raises:
            IncompleteRunError: some vbuckets could not be read, and all others are committed and
                applied; or ``policy.persist_to`` holds an apply back.
            StoppedError: ``stop`` or a pause came first; all received rows are committed.
            QualityError: ``quality.gate`` holds an apply back; all received rows are committed.
            AuthenticationError, BucketError, SecretError, StoreRefusedError: refused for five
                minutes.
            StoreUnavailableError: the store did not answer for five minutes.
        """
        self._persistence.heed(stop)
        bounds = BoundedRun(cluster)
        following: ProbedCluster | None = cluster
        while following is not None:
            try:
                with self.lake.read_once():
                    following = self._step(following, bounds, stop, is_enough)
            except Exception as failure:  # Spark's own class, where the store fails
                wait = self._outages.outlast(failure, is_endless=False)
                if stop.is_set():
                    raise StoppedError(_STOPPED) from failure
                self._observer.waiting(_CHECK_SECONDS, wait)
                stop.wait(_CHECK_SECONDS)
        return self._report

    def _step(
        self,
        cluster: ProbedCluster,
        bounds: BoundedRun,
        stop: threading.Event,
        is_enough: Callable[[], bool],
    ) -> ProbedCluster | None:
        """Run one round of `once`; return the cluster's new state, or None at the end."""
        pause = self._requests.carry_out()
        plan = self.prepare_round(cluster, targets=bounds.goals, skip=bounds.given_up)
        if is_enough():
            self.apply_received()
            return None
        if isinstance(plan, Idle) and not self._backfills.is_open:
            if self.apply(plan.latest_round, force=True):
                return cluster  # what could not be taken back must be streamed again
            self._erasures.note_round()
            if pause is None and self._erase():
                return cluster
            self._report.left_out = (*plan.left_out, *self._stale(plan.left_out))
            self._report.paused = "" if pause is None else paused_by(pause)
            self._observer.idle(replace(plan, outlook=Outlook(paused=self._report.paused)))
            if left_out := self._report.left_out:
                raise IncompleteRunError(
                    f"{len(left_out)} vbuckets could not be read to where they were at the start; "
                    "all others are committed and applied\n" + "\n".join(left_out_lines(left_out))
                )
            self._refuse_withheld()
            if pause is None and self._settings.apply.when is not ApplyWhen.NEVER:
                self._erasures.refuse_waiting()
            return None
        if pause is not None:
            self.apply(self.received(), force=True)
            raise StoppedError(f"the lake is {paused_by(pause)}; dcplake resume ends that")
        if isinstance(plan, Idle):
            self._observer.idle(plan)
            stop.wait(_CHECK_SECONDS)  # for the nodes of a backfill
        if stop.is_set():
            raise StoppedError(_STOPPED)
        if isinstance(plan, RoundPlan):
            report = self.round(plan)
            bounds.learn(plan, report)
            self.apply(report.round, force=False)
        found = query_cluster(self._access, self._remembered)
        self._outages.succeeded()
        bounds.update(found)
        return found

    def continuously(self, stop: threading.Event) -> RunReport:
        """Run a round whenever the cluster has news, at most one each minimum interval.

        Another thread applies the rounds; this thread does not wait for it. After ``stop`` is set,
        the running round ends and is applied if that is due. Failures: see `Outages`.
        """
        self._persistence.heed(stop)
        with ApplyThread(self.apply_newest, self._applier.leave_the_rest) as applying:
            self._is_applying = applying.is_busy
            while not stop.is_set():
                self._pass(applying, stop)
        return self._report

    def _pass(self, applying: ApplyThread, stop: threading.Event) -> None:
        begin = monotonic()
        applying.check()
        wait = self.poll(applying.submit, stop)
        due_at = begin + self._settings.round.minimum_interval_seconds
        if wait != NEXT_ROUND:
            due_at = max(due_at, monotonic() + _CHECK_SECONDS)
        if (wait_seconds := due_at - monotonic()) > 0 and not stop.is_set():
            self._observer.waiting(wait_seconds, wait)
        while (wait_seconds := due_at - monotonic()) > 0:
            applying.check()
            if stop.wait(min(wait_seconds, _CHECK_SECONDS)):
                break

    def poll(self, submit: Callable[[int], object], stop: threading.Event) -> Wait:
        """Answer the requests, and run a round if one is due: one pass of `continuously`.

        It calls ``submit`` with the newest round, for `apply_newest`. Returns what to wait for
        before the next pass.
        """
        try:
            with self.lake.read_once():
                if (pause := self._requests.carry_out()) is not None:
                    submit(self.received())
                    self._outages.succeeded()
                    return Wait(f"dcplake resume: {paused_by(pause)}", is_trouble=False)
                if self._erasures.is_due():
                    if self._is_applying():
                        return ERASURE
                    self._erase()
                try:
                    submit(self._receive(stop))
                    self._erasures.note_round()
                except (SourceError, RemoteProtocolError, SecretError):
                    submit(self.received())
                    raise
        except Exception as failure:  # Spark's own class, where the store fails
            return self._outages.outlast(failure, is_endless=True)
        return NEXT_ROUND

    def _receive(self, stop: threading.Event) -> int:
        plan = self.prepare_round(query_cluster(self._access, self._remembered))
        if isinstance(plan, Idle):
            self._observer.idle(plan)
            newest = plan.latest_round
        elif stop.is_set():
            newest = plan.round - 1
        else:
            report = self.round(plan)
            self._delayed_vbuckets.learn(report.vbuckets, monotonic())
            newest = report.round
        self._outages.succeeded()
        # This run has no end: of what it did, only the newest is kept.
        self._report.rounds = self._report.rounds[-1:]
        return newest

    def apply_newest(self, to_round: int) -> None:
        """Apply the pending changes up to ``to_round`` if an apply is due, in a run without end.

        If the store fails, the next submitted round is applied instead.
        """
        try:
            self.apply(to_round, force=False)
            self._apply_outages.succeeded()
        except Exception as failure:  # Spark's own class, where the store fails
            self._observer.waiting(0.0, self._apply_outages.outlast(failure, is_endless=True))
        self._report.applied = self._report.applied[-1:]

    def prepare_round(
        self,
        cluster: ProbedCluster,
        targets: Mapping[int, int] | None = None,
        skip: Mapping[int, LeftOut] | None = None,
    ) -> RoundPlan | Idle:
        """Return the next round's plan; commit what the lake lacks for it, and note the contact.

        The commits may be new tables, heartbeats, properties, and the audit that a killed driver
        did not write.

        Raises:
            LakeError: the lake holds another bucket, or somebody changed the log.
            ConfigError: a setting names an unknown scope or collection.
        """
        require_same_bucket(self.lake, cluster, self._settings.source.bucket)
        self._remember(cluster)
        document_filter = filter_of(self.lake, self._settings, cluster.manifest)
        there = collections_of(cluster.manifest)
        dropped = self._access.dropped.with_present(self._settings.policy, there)
        self._access = replace(self._access, dropped=dropped)
        self._guard.check()
        self._ensure_replicas(cluster, document_filter)
        if self._settings.apply.when is ApplyWhen.NEVER:  # somebody else applies, meanwhile too
            self._applier.read_statuses()
        lake_state = read_lake_state(
            self.lake,
            self._settings,
            document_filter,
            self._applier.stale,
            self._requests.resyncs(),
            partial(self._backfills.next, cluster),
            self._delayed_vbuckets.delayed(monotonic()),
        )
        self._requests.end_resyncs(lake_state)
        kept_out = self._erasures.kept_out()  # after the newest round was asked for
        lake_state = replace(
            lake_state, document_filter=document_filter.keeping_out(kept_out, there)
        )
        self._read_recorded_policies(lake_state.states.values(), there)
        self._persistence.leave_out([left.vbucket for left in refused_rollbacks(lake_state)])
        plan = plan_round(
            lake_state,
            cluster,
            self._settings.round,
            self._settings.flow_control,
            lambda: tasks_at_once(self.lake, beside_apply=self._is_applying()),
            targets=targets,
            skip=skip,
        )
        self._contacts.contacted(plan.backlog if isinstance(plan, RoundPlan) else 0)
        if isinstance(plan, RoundPlan):
            return plan.listing(unindexed_applied(self.lake, self._applier.replicas))
        return plan

    def _remember(self, cluster: ProbedCluster) -> None:
        is_encrypted = self._access.consumer.connection.tls is not None
        nodes = remembered_text(cluster.map, tls=is_encrypted)
        if nodes and (self._nodes is None or nodes != self._nodes.connection_string):
            remember_nodes(self.lake, nodes)
            self._nodes = RememberedNodes(nodes, self.lake.identity)

    def _remembered(self) -> RememberedNodes | None:
        return self._nodes

    def received(self) -> int:
        """Return the newest round; let the applier know the lake's tables, as a plan does."""
        # Each table that is looked up costs a request to an object store.
        if set(known_replicas(self.lake)) != set(self._applier.replicas):
            self._applier.set_replicas(replicas_in(self.lake))
        return latest_round(self.lake)

    def apply_received(self) -> list[AppliedVersion]:
        """Apply all received rounds, even if no apply is due.

        Raises:
            IncompleteRunError, QualityError: see `once`.
        """
        self._guard.check()
        made = self.apply(self.received(), force=True)
        self._refuse_withheld()
        if self._erasures.is_due():
            self._erase()
        return made

    def round(self, plan: RoundPlan) -> RoundReport:
        store = self.lake.store
        with round_progress(is_local=store.slots > 0) as progress:
            self._observer.planned(plan, progress)
            try:
                with store.pool("receive"):
                    report = run_round(self.lake, plan, self._access, self.writer_id, progress)
            except BaseException:
                self._observer.ended()
                raise
        self._report.rounds.append(report)
        self._backfills.learn(plan, report)
        self._contacts.committed(report)
        self._observer.committed(report)
        return report

    def _read_recorded_policies(
        self, states: Iterable[LakeVbucketState], collections: Collections
    ) -> None:
        """Read the recorded policies again after a new round with collection events.

        The repair of a damaged lake counts as such a round.
        """
        dropped = self._access.dropped
        newest = max((state.last_collection_round or 0 for state in states), default=0)
        if newest != dropped.recorded_up_to:
            recorded = dropped_policies(self.lake)
            dropped = replace(dropped, recorded=recorded, recorded_up_to=newest)
        there = {each.collection_id for each in collections.all}
        dropped = replace(dropped, present=frozenset(there & dropped.recorded.keys()))
        self._access = replace(self._access, dropped=dropped)

    def apply(self, to_round: int, *, force: bool) -> list[AppliedVersion]:
        """Apply the pending changes up to ``to_round``, the newest round, if an apply is due and
        allowed.

        ``force`` makes it due, unless ``apply.when`` is never.
        """
        # Both must be asked, as each call clears its answer: no ``or``.
        if self._outages.was_cut_short() | self._apply_outages.was_cut_short():
            self._applier.reread_statuses()
        if self._settings.apply.when is not ApplyWhen.NEVER:
            applied_round = self._applier.applied_round
            if not self._persistence.lets_pass(applied_round, to_round, waits=force):
                return []
        begin = monotonic()
        if made := self._applier.apply(to_round, force=force):
            self._contacts.applied(made, round(monotonic() - begin, 3))
        self._report.applied += made
        return made

    def _erase(self) -> bool:
        """Carry out a due erasure; return whether the lake has changed. The caller ensures that no
        apply runs.
        """
        return self._erasures.carry_out(lambda: self.apply(self.received(), force=True))

    def _refuse_withheld(self) -> None:
        self._persistence.refuse_withheld()
        self._gate.refuse_withheld()

    def close(self) -> None:
        """End the use of Spark, and report the end of the run. The driver cannot be used
        afterwards.
        """
        self._observer.ended()
        self._contacts.ended()
        self._applier.close()

    def _ensure_replicas(self, cluster: ProbedCluster, document_filter: DocumentFilter) -> None:
        """Make the tables of new collections; those of dropped ones still get applies.

        If a vbucket was read with another filter, a new table would lack documents: it is made when
        all vbuckets have begun anew. The tables of dropped collections get no rows, but at an old
        round they would keep the log from being cleaned.
        """
        there = replicas_of(cluster.manifest)
        wanted = filter(document_filter.has_table, there)
        new = [each for each in wanted if each not in self._ensured]
        if new:
            states = states_at(self.lake, latest_round(self.lake)).values()
            if not all(map(document_filter.has_read, states)):
                new = [each for each in new if each == DOCS]
        if new:
            ensure_replicas(
                self.lake,
                new,
                horizon_hours=self._settings.lake.horizon_hours,
                deletion_vectors=self._settings.lake.deletion_vectors,
            )
            self._applier.set_replicas(replicas_in(self.lake))
            self._ensured.update(new)  # last: what failed before is done again

    def _stale(self, known: Collection[LeftOut]) -> tuple[LeftOut, ...]:
        if self._settings.apply.when is ApplyWhen.NEVER:
            return ()
        told = {left.vbucket for left in known}
        detail = "a table shows its old rows until it is streamed whole"
        stale = sorted(self._applier.stale)
        return tuple(LeftOut(vb, StuckReason.STALE, detail) for vb in stale if vb not in told)
