"""The order of a run's steps, without Spark: rounds are scripted, the cluster is a fake."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.probe import ProbedCluster
from dcp.errors import (
    AuthenticationError,
    BucketError,
    DcplakeError,
    IncompleteRunError,
    LakeError,
    NodeUnavailableError,
    RemoteProtocolError,
    SecretError,
    SourceError,
    StoppedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.control import ControlRequest, RequestAction
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import RoundSettings, Settings, SourceSettings
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import Idle, LeftOut, RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run import driver as driver_module
from dcp.lake.run import outages
from dcp.lake.run.driver import Driver
from dcp.lake.store.location import LakeLocation
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.lake_tables import LakeIdentity, LakeTables
from dcp.lake.tables.round_record import Outcome, VbucketReport
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.protocol.position import Position
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire.vocabulary import Opcode
from tests.lake.receiving import RoundsInProcess, settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODE = NodeAddress("a", 1)


def probed(*high_seqnos: int) -> ProbedCluster:
    count = len(high_seqnos)
    cluster_map = ClusterMap("b", "uuid", 1, 1, (NODE,), (0,) * count)
    return ProbedCluster(cluster_map, dict(enumerate(high_seqnos)), MappingProxyType({}))


def no_spark() -> "SparkSession":
    raise AssertionError("Spark is not needed here")


class Scripted(Driver):
    """A driver whose rounds end each vbucket as ``outcome_of`` says."""

    def __init__(
        self,
        outcome_of: Callable[[int, int], tuple[Outcome, int]],
    ) -> None:
        quick = RoundSettings(minimum_interval_seconds=0.001)
        store = SparkStore(no_spark, LakeLocation(root="/nowhere"))
        lake = LakeTables(store, LakeIdentity("lake", "b", "uuid", 1))
        settings = Settings(SourceSettings(seeds=("a",)), round=quick)
        super().__init__(lake, settings, source_access(settings), Observer())
        self._outcome_of = outcome_of
        self.states: dict[int, LakeVbucketState] = {}
        self.keeps_states = False
        self.rounds: list[set[int]] = []
        self.handed_over = 0
        self.idle: list[tuple[LeftOut, ...]] = []
        self.on_plan: Callable[[], None] = lambda: None

    def prepare_round(
        self,
        cluster: ProbedCluster,
        targets: Mapping[int, int] | None = None,
        skip: Mapping[int, LeftOut] | None = None,
    ) -> RoundPlan | Idle:
        self.on_plan()
        delayed = self._delayed_vbuckets.delayed(monotonic())
        lake_state = LakeState("lake", len(self.rounds), self.states, delayed=delayed)
        plan = plan_round(
            lake_state,
            cluster,
            RoundSettings(),
            FlowControlSettings(),
            1,
            targets=targets,
            skip=skip,
        )
        if isinstance(plan, Idle):
            self.idle.append(plan.left_out)
        return plan

    def received(self) -> int:
        self.handed_over += 1
        return len(self.rounds)

    def round(self, plan: RoundPlan) -> RoundReport:
        self.rounds.append({stream.vbucket for stream in plan.streams})
        reports = []
        for stream in plan.streams:
            outcome, seqno = self._outcome_of(stream.vbucket, stream.target_seqno)
            position = Position(0xAB if seqno else 0, seqno, seqno, seqno, seqno)
            if not self.keeps_states:
                self.states[stream.vbucket] = LakeVbucketState(stream.vbucket, 0, position, seqno)
            reports.append(
                VbucketReport(
                    stream.vbucket,
                    outcome,
                    0,
                    0,
                    0,
                    seqno,
                    seqno,
                    stream.target_seqno,
                    str(outcome),
                )
            )
        self._report.rounds.append(RoundReport(plan.round, 0, 0.0, tuple(reports), plan.left_out))
        return self._report.rounds[-1]

    def apply(self, to_round: int, *, force: bool) -> list[AppliedVersion]:
        return []


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ProbedCluster | DcplakeError]]:
    """What the next probes of the cluster find; the last one stays."""
    script: list[ProbedCluster | DcplakeError] = []

    def probe(*_: object) -> ProbedCluster:
        found = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(found, DcplakeError):
            raise found
        return found

    monkeypatch.setattr(driver_module, "query_cluster", probe)
    yield script


class Receiving(Scripted):
    """A driver whose rounds receive from a real producer, in this process."""

    def __init__(self, cluster: ProducerCluster, folder: Path) -> None:
        super().__init__(lambda _, target: (Outcome.REACHED, target))
        self._in_process = RoundsInProcess(settings_for(cluster, folder))
        self._access = self._in_process.access

    def go_on_from(self, other: "Receiving") -> None:
        self._in_process.states = self.states = other.states

    def round(self, plan: RoundPlan) -> RoundReport:
        self.rounds.append({stream.vbucket for stream in plan.streams})
        rows = self._in_process.run(plan)
        self.states = self._in_process.states
        told = [(row["vbucket"], row["detail"]) for row in rows if row["kind"] == "status"]
        reports = tuple(VbucketReport.parse(vbucket, status) for vbucket, status in told)
        assert all(report.rows == 0 for report in reports)
        self._report.rounds.append(RoundReport(plan.round, 0, 0.0, reports, plan.left_out))
        return self._report.rounds[-1]


def after_plans(driver: Scripted, count: int) -> threading.Event:
    """Return an event that is set when ``count`` plans were made."""
    stop, made = threading.Event(), [0]

    def one_more() -> None:
        made[0] += 1
        if made[0] >= count:
            stop.set()

    driver.on_plan = one_more
    return stop


def test_a_rolled_back_vbucket_is_streamed_again_in_the_next_round(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    probes.append(probed(10, 10))
    ordered: list[int] = []

    def outcome_of(vbucket: int, target: int) -> tuple[Outcome, int]:
        if vbucket and not ordered:
            ordered.append(vbucket)
            return Outcome.ROLLBACK, 0
        return Outcome.REACHED, target

    driver = Scripted(outcome_of)
    driver.once(probed(10, 10), threading.Event())
    assert driver.rounds == [{0, 1}, {1}]
    assert driver.idle == [()]


def test_whoever_looks_on_hears_that_a_run_is_over_also_where_it_failed() -> None:
    """Else the thread that tells how far a round is would go on."""
    heard: list[str] = []
    driver = Scripted(lambda _, __: (Outcome.REACHED, 10))
    driver._observer.ended = lambda: heard.append("ended")  # type: ignore[method-assign]
    with pytest.raises(SourceError), closing(driver):
        raise SourceError("the cluster is gone")
    assert heard == ["ended"]


def test_a_node_that_contradicts_itself_for_ever_is_left_out(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    """It tells a lower high seqno than what was read, and accepts our place again and again."""
    probes.append(probed(7))
    driver = Scripted(lambda _, __: (Outcome.REACHED, 10))
    log = FailoverLog((FailoverEntry(0xAB, 0),))
    driver.states[0] = LakeVbucketState(0, 0, Position.complete_at(0xAB, 10), 10, failover_log=log)
    driver.keeps_states = True
    with pytest.raises(IncompleteRunError, match="node contradicts itself"):
        driver.once(probed(7), threading.Event())
    assert driver.rounds == [{0}] * 3


def test_what_no_round_brings_further_is_given_up_with_its_reason(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    """The script's reports have their outcome as reason."""
    probes.append(probed(10))
    driver = Scripted(lambda _, __: (Outcome.BUDGET, 0))
    with pytest.raises(IncompleteRunError):
        driver.once(probed(10), threading.Event())
    assert driver.rounds == [{0}] * 3
    assert [[left.reason for left in told] for told in driver.idle] == [["budget"]]


@pytest.mark.parametrize(
    "trouble",
    [NodeUnavailableError("gone"), SourceError("ETMPFAIL"), RemoteProtocolError("no JSON")],
)
def test_a_continuous_run_outlives_a_cluster_in_trouble(
    probes: list[ProbedCluster | DcplakeError], trouble: DcplakeError
) -> None:
    probes += [trouble, trouble, probed(10)]
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.continuously(after_plans(driver, 2))
    assert driver.rounds == [{0}]
    assert driver.handed_over == 2, "what was received before is applied meanwhile"


OUTAGES = (
    StoreUnavailableError("t: the object store does not answer"),
    OSError(
        "Kernel error -> Generic S3 error: Error performing GET http://s in 1s - HTTP error: x"
    ),
)


@pytest.mark.parametrize("outage", OUTAGES, ids=["ours", "of delta-rs"])
@pytest.mark.parametrize("is_endless", [True, False])
def test_a_run_outlasts_a_store_that_does_not_answer(
    probes: list[ProbedCluster | DcplakeError],
    monkeypatch: pytest.MonkeyPatch,
    outage: Exception,
    is_endless: bool,
) -> None:
    """It fails as the run asks for requests, plans, commits a round, and applies it."""
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    probes.append(probed(10))
    failed: list[str] = []

    def fails(part: str) -> None:
        if failed.count(part) < 2:
            failed.append(part)
            raise outage

    def outcome_of(_: int, target: int) -> tuple[Outcome, int]:
        fails("round")
        return Outcome.REACHED, target

    def carry_out() -> None:
        fails("requests")

    driver = Scripted(outcome_of)
    driver.on_plan = lambda: fails("plan")
    monkeypatch.setattr(driver._requests, "carry_out", carry_out)
    applied: list[int] = []

    def apply(to_round: int, *, force: bool) -> list[AppliedVersion]:
        fails("apply")
        applied.append(to_round)
        stop.set()
        return []

    stop = threading.Event()
    monkeypatch.setattr(driver, "apply", apply)
    reasons: list[str] = []
    monkeypatch.setattr(driver._observer, "waiting", lambda _, wait: reasons.append(wait.reason))
    if is_endless:
        driver.continuously(stop)
    else:
        driver.once(probed(10), threading.Event())
    assert {part: failed.count(part) for part in ("requests", "plan", "round", "apply")} == {
        "requests": 2,
        "plan": 2,
        "round": 2,
        "apply": 2,
    }
    assert applied and set(applied) <= {1, 3}, "rounds are counted when they are tried"
    told = [reason for reason in reasons if reason.startswith("the object store: ")]
    assert len(told) == 8 and all("the object store does not answer" in each for each in told)


def test_a_store_ends_a_bounded_run_after_a_while_and_an_endless_one_never(
    probes: list[ProbedCluster | DcplakeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(outages, "REFUSED_SECONDS", 0.01)
    probes.append(probed(10))
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    stop, asked = threading.Event(), [0]

    def carry_out() -> None:
        asked[0] += 1
        if asked[0] == 100:
            stop.set()
        raise OUTAGES[0]

    monkeypatch.setattr(driver._requests, "carry_out", carry_out)
    driver.continuously(stop)
    assert asked[0] == 100
    asked[0] = 200
    with pytest.raises(StoreUnavailableError):
        driver.once(probed(10), threading.Event())


def failing_at_first(failure: Exception, calls: list[str]) -> Callable[..., list[AppliedVersion]]:
    """Return an `Applier.apply` that applies nothing, and fails if it is the first of ``calls``."""

    def apply(*_: object, **__: object) -> list[AppliedVersion]:
        calls.append("apply")
        if len(calls) == 1:
            raise failure
        return []

    return apply


@pytest.mark.parametrize("failure", [OUTAGES[1], SecretError("the file of the key is empty")])
def test_the_status_of_tables_is_read_anew_after_the_store_failed(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """An apply may have committed what it did not hear of; the look at the tables may fail, too."""
    monkeypatch.setattr(Scripted, "apply", Driver.apply)
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    calls: list[str] = []

    def learn() -> None:
        calls.append("learn")
        if calls.count("learn") == 1:
            raise failure

    monkeypatch.setattr(driver._applier, "apply", failing_at_first(failure, calls))
    monkeypatch.setattr(driver._applier, "reread_statuses", learn)
    for _ in range(4):
        driver.apply_newest(1)
    assert calls == ["apply", "learn", "learn", "apply", "apply"]


def test_a_failure_that_ends_the_run_lets_no_table_be_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Scripted, "apply", Driver.apply)
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    calls: list[str] = []
    damaged = LakeError("t: its files are damaged")
    monkeypatch.setattr(driver._applier, "apply", failing_at_first(damaged, calls))
    monkeypatch.setattr(driver._applier, "reread_statuses", lambda: calls.append("learn"))
    with pytest.raises(LakeError):
        driver.apply_newest(1)
    driver.apply_newest(1)
    assert calls == ["apply", "apply"]


def test_vbuckets_that_move_and_bring_nothing_make_ever_fewer_rounds(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    """Each look finds one more prepare, abort or document that the filter leaves out."""
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    probes[:] = [probed(seqno) for seqno in range(1, 301)]
    driver.continuously(after_plans(driver, 300))
    assert 3 <= len(driver.rounds) <= 25
    assert driver.handed_over == 0, "it looked each time"


def test_prepares_that_wait_or_abort_make_few_rounds_and_positions_follow(tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(vbuckets=1, rules="server")) as cluster:
        driver = Receiving(cluster, tmp_path)
        stop = after_plans(driver, 40)
        count = driver.on_plan

        def one_more() -> None:
            seqno = cluster.high_seqno(0) + 1
            content = Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(level=1))
            if not seqno % 2:
                content = Content(opcode=Opcode.DCP_ABORT, sync=SyncWrite(seqno - 1))
            version = Version(0, b"key", content, seqno=seqno, rev=seqno, cas=seqno << 16)
            cluster.take_versions(0, [version])
            count()

        one_more()
        driver.on_plan = one_more
        driver.continuously(stop)
        assert 2 <= len(driver.rounds) <= 20

        goal = query_cluster(driver._access)
        assert goal.high_seqnos == {0: cluster.high_seqno(0)}, "prepares and aborts are told"
        bounded = Receiving(cluster, tmp_path)
        bounded.go_on_from(driver)
        bounded.on_plan = one_more
        bounded.once(goal, threading.Event())
        assert bounded.states[0].caught_up_seqno >= goal.high_seqnos[0] >= 40


@pytest.mark.parametrize("pauses_at", [1, 2, 3])
def test_a_pause_stops_a_run_only_before_a_round_that_it_still_needs(
    probes: list[ProbedCluster | DcplakeError],
    monkeypatch: pytest.MonkeyPatch,
    pauses_at: int,
) -> None:
    """It needs two: a pause at its third look, the last one, finds all of them done."""
    probes.append(probed(10, 10))
    outcomes = iter([(Outcome.REACHED, 10), (Outcome.ROLLBACK, 0), (Outcome.REACHED, 10)])
    driver = Scripted(lambda *_: next(outcomes))
    asked = 0
    pause = ControlRequest(id="id", action=RequestAction.PAUSE, who="ann", time=datetime.now(UTC))

    def carry_out() -> ControlRequest | None:
        nonlocal asked
        asked += 1
        return pause if asked >= pauses_at else None

    monkeypatch.setattr(driver._requests, "carry_out", carry_out)
    told: list[Idle] = []
    monkeypatch.setattr(driver._observer, "idle", told.append)
    if pauses_at <= 2:
        with pytest.raises(StoppedError, match="the lake is paused by ann"):
            driver.once(probed(10, 10), threading.Event())
    else:
        report = driver.once(probed(10, 10), threading.Event())
        assert "paused by ann" in str(report) and "paused by ann" in str(told[-1])
        assert "paused by ann" in told[-1].to_json()["paused"]
    assert len(driver.rounds) == pauses_at - 1
    assert driver.handed_over == (pauses_at <= 2), "what was received is applied"


def test_a_continuous_run_that_is_asked_to_stop_begins_no_further_round(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    probes.append(probed(10))
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.continuously(after_plans(driver, 1))
    assert driver.rounds == []


@pytest.mark.parametrize(
    "refusal", [AuthenticationError("no"), BucketError("none"), StoreRefusedError("wrong keys")]
)
def test_a_run_that_goes_on_may_be_refused_for_a_while(
    probes: list[ProbedCluster | DcplakeError],
    monkeypatch: pytest.MonkeyPatch,
    refusal: DcplakeError,
) -> None:
    """The node may be starting; the secret may be a new one."""
    probes += [refusal, SecretError("the file is empty"), probed(10), refusal, probed(10)]
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.continuously(after_plans(driver, 2))
    assert driver.rounds == [{0}]
    if not isinstance(refusal, StoreRefusedError):
        assert driver.handed_over == 3, "what was received before is applied meanwhile"
    monkeypatch.setattr(outages, "REFUSED_SECONDS", 0.1)
    probes[:] = [refusal, NodeUnavailableError("gone for a moment")] * 50 + [refusal]
    began = monotonic()
    with pytest.raises(type(refusal)):
        driver.continuously(threading.Event())
    assert monotonic() - began >= 0.1


@pytest.mark.parametrize("step", ["receive", "apply"])
def test_an_outage_between_two_refusals_is_no_refusal(
    probes: list[ProbedCluster | DcplakeError], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The node that comes back after an hour may refuse us while it starts, too."""
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    clock = partial(next, count())  # a second each time
    for module in (driver_module, outages):
        monkeypatch.setattr(module, "monotonic", clock)
    refusal = StoreRefusedError("wrong keys")
    outage = StoreUnavailableError("gone") if step == "apply" else NodeUnavailableError("gone")
    failures: list[DcplakeError] = [refusal, *[outage] * 400, refusal, refusal]
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    if step == "receive":
        probes += [*failures, probed(10)]
        driver.continuously(after_plans(driver, 2))
        assert driver.rounds == [{0}]
        return

    def apply(*_: object, **__: object) -> list[AppliedVersion]:
        clock()  # it takes a second
        if failures:
            raise failures.pop(0)
        return []

    monkeypatch.setattr(driver, "apply", apply)
    while failures:
        driver.apply_newest(1)
    driver.apply_newest(1)


def test_a_long_round_between_two_refusals_is_no_refusal(
    probes: list[ProbedCluster | DcplakeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    for module in (driver_module, outages):
        monkeypatch.setattr(module, "monotonic", partial(next, count(step=1000)))
    refusal = StoreRefusedError("wrong keys")
    probes += [refusal, refusal, probed(10)]  # the second after a quarter of an hour
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.continuously(after_plans(driver, 2))
    assert driver.rounds == [{0}]
    probes[:] = [refusal] * 4
    with pytest.raises(StoreRefusedError):
        driver.continuously(threading.Event())


def test_a_bounded_run_that_is_under_way_may_be_refused_for_a_while(
    probes: list[ProbedCluster | DcplakeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = BucketError("the node has no bucket yet")
    probes += [refusal, refusal, probed(10)]
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.once(probed(10), threading.Event())
    assert driver.rounds == [{0}]
    probes[:] = [refusal]
    driver.keeps_states = True  # there is always something to read
    monkeypatch.setattr(outages, "REFUSED_SECONDS", 0.01)
    with pytest.raises(BucketError):
        driver.once(probed(20), threading.Event())


@pytest.mark.parametrize("part", ["plan", "round"])
@pytest.mark.parametrize(
    "refusal",
    [
        AuthenticationError("no"),
        SecretError("the file is empty"),
        StoreRefusedError("wrong keys"),
        OSError("Generic S3 error: Error performing GET http://s in 1s - status code: 403 No: no"),
    ],
)
def test_a_bounded_run_whose_first_round_is_refused_tries_again_for_a_while(
    probes: list[ProbedCluster | DcplakeError],
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    refusal: Exception,
) -> None:
    """The cluster was looked at before, so the node may have restarted meanwhile."""
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    probes.append(probed(10))
    refusals = [refusal] * 2

    def refuse() -> None:
        if refusals:
            raise refusals.pop()

    def outcome_of(_: int, target: int) -> tuple[Outcome, int]:
        refuse()
        return Outcome.REACHED, target

    driver = Scripted(outcome_of)
    if part == "plan":
        driver.on_plan = refuse
    driver.once(probed(10), threading.Event())
    assert not refusals
    assert [len(driver.rounds), len(driver._report.rounds)] == [1 if part == "plan" else 3, 1]

    refusals = [refusal] * 10_000
    monkeypatch.setattr(outages, "REFUSED_SECONDS", 0.01)
    ends = type(refusal) if isinstance(refusal, DcplakeError) else StoreRefusedError
    with pytest.raises(ends):
        driver.once(probed(20), threading.Event())


@pytest.mark.parametrize("refusal", [SecretError("it is empty"), StoreRefusedError("wrong keys")])
def test_applies_that_a_store_refuses_are_outlasted_for_a_while_beside_rounds_that_go_on(
    probes: list[ProbedCluster | DcplakeError],
    monkeypatch: pytest.MonkeyPatch,
    refusal: DcplakeError,
) -> None:
    monkeypatch.setattr(driver_module, "_CHECK_SECONDS", 0.001)
    probes += [probed(seqno) for seqno in range(1, 10_000)]
    stop, asked = threading.Event(), [0]

    def apply(to_round: int, *, force: bool) -> list[AppliedVersion]:
        asked[0] += 1
        if asked[0] <= 3:
            raise refusal
        stop.set()
        return []

    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    monkeypatch.setattr(driver, "apply", apply)
    driver.continuously(stop)
    assert asked[0] >= 4

    monkeypatch.setattr(outages, "REFUSED_SECONDS", 0.1)
    asked[0] = -1_000_000
    with pytest.raises(type(refusal)):
        driver.continuously(threading.Event())
    assert len(driver.rounds) > 1, "rounds went on"


def test_a_bounded_run_that_is_refused_ends_when_it_is_asked_to_stop() -> None:
    stop = threading.Event()

    def refuse() -> None:
        stop.set()
        raise BucketError("the node has no bucket yet")

    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.on_plan = refuse
    with pytest.raises(StoppedError):
        driver.once(probed(10), stop)


def test_trusted_certificates_may_be_replaced(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    probes += [SecretError("CA file: no certificate found"), probed(10)]
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.continuously(after_plans(driver, 2))
    assert driver.rounds == [{0}]


def test_a_round_that_is_refused_is_made_again_with_the_new_secret(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    """An executor may have the files of before for a minute."""
    probes.append(probed(10))
    tried: list[int] = []

    def outcome_of(_: int, target: int) -> tuple[Outcome, int]:
        tried.append(target)
        if len(tried) == 1:
            raise AuthenticationError("no")
        return Outcome.REACHED, target

    driver = Scripted(outcome_of)
    driver.continuously(after_plans(driver, 3))
    assert driver.rounds == [{0}, {0}]


def test_a_goal_that_its_node_lost_is_lowered(probes: list[ProbedCluster | DcplakeError]) -> None:
    """A failover to a replica that held less: proven empty at 7 of 10, the run is done."""
    probes.append(probed(7))
    driver = Scripted(lambda _, __: (Outcome.CAUGHT_UP, 7))
    driver.once(probed(10), threading.Event())
    assert driver.rounds == [{0}]
    assert driver.idle == [()]


def test_a_bounded_run_that_was_asked_to_stop_says_so(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    probes.append(probed(10))
    driver = Scripted(lambda _, __: (Outcome.BUDGET, 5))
    with pytest.raises(StoppedError) as caught:
        driver.once(probed(10), after_plans(driver, 2))
    assert caught.value.exit_code == 130
    assert driver.rounds == [{0}]


def test_a_bounded_run_that_is_done_when_it_is_asked_to_stop_is_done(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    probes.append(probed(10))
    driver = Scripted(lambda _, target: (Outcome.REACHED, target))
    driver.once(probed(10), after_plans(driver, 2))
    assert driver.rounds == [{0}]


def test_what_stopped_ends_a_bounded_run_as_incomplete(
    probes: list[ProbedCluster | DcplakeError],
) -> None:
    probes.append(probed(10, 10))
    driver = Scripted(
        lambda vbucket, target: (Outcome.STOPPED, 0) if vbucket else (Outcome.REACHED, target)
    )
    with pytest.raises(IncompleteRunError, match="1 vbuckets"):
        driver.once(probed(10, 10), threading.Event())
    assert driver.rounds == [{0, 1}]
