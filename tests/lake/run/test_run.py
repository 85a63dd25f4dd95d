"""Whole runs on Spark and Delta against the real producer."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from dcp.errors import (
    AuthenticationError,
    BucketError,
    FencedError,
    IncompleteRunError,
    LakeError,
    NodeUnavailableError,
    StoppedError,
)
from dcp.lake.change_log.changes import latest_round
from dcp.lake.query.views import register_views
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import Idle, RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.check_up import check_source
from dcp.lake.run.driver import Driver, run_round
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import open_or_create, run
from dcp.lake.run.set_up_check import CheckedStep
from dcp.lake.tables.lake_tables import LakeTables, find_lake
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.lake.verify.compare import verify
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import MAX_VALUE_BYTES
from dcp.server.model.refused_error import RefusedError
from dcp.wire.vocabulary import Datatype
from dcp.wire.xattr import MAX_SYSTEM_BYTES, join_xattrs
from tests.lake.figures import figures_of
from tests.lake.receiving import (
    QUICK_ROUND,
    QUICK_SOURCE,
    SMALL_FLOW,
    lake_of,
    settings_for,
    store_without_spark,
)
from tests.lake.replicas import (
    complete_seqnos,
    durable_seqnos,
    require_every_version_exact,
    require_live_exact,
    require_no_row_twice,
    source_rows,
    table_rows,
)
from tests.lake.versions import table_at
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
VBUCKETS = 4


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=11)) as cluster:
        yield cluster


class Collector(Observer):
    """Remembers the rounds, and checks or changes something after each."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []
        self.idles: list[Idle] = []

    def committed(self, report: RoundReport) -> None:
        self.reports.append(report)

    def idle(self, idle: Idle) -> None:
        self.idles.append(idle)


def fill(cluster: ProducerCluster, count: int, start: int = 0) -> None:
    with cluster.batch():
        for number in range(start, start + count):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number)


def require_exact(lake: LakeTables, cluster: ProducerCluster) -> None:
    require_every_version_exact(lake, cluster)
    require_no_row_twice(lake)


@pytest.mark.slow
def test_once_replicates_the_bucket_and_ends_idle(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 300)
    settings = settings_for(cluster, tmp_path)
    first = run(settings, once=True, spark=spark)
    assert [report.rows for report in first.rounds] == [300]
    assert "300 rows" in str(first.rounds[0])
    assert json.loads(json.dumps(first.rounds[0].to_json()))["rows"] == 300
    lake = lake_of(settings, spark)
    high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
    assert complete_seqnos(lake, 1) == high
    assert table_rows(lake, None) == source_rows(cluster, high)
    again = Collector()
    second = run(settings, once=True, spark=spark, observer=again)
    assert (second.rounds, second.applied, len(again.idles)) == ([], [], 1)
    assert latest_round(lake) == 1
    require_exact(lake, cluster)
    require_live_exact(lake, cluster, 1)
    register_views(lake)
    [listed] = spark.sql("SELECT rows, bytes FROM rounds").collect()
    assert tuple(listed) == (first.rounds[0].rows, first.rounds[0].frame_bytes)
    assert spark.sql("SELECT count(*) FROM pending_changes").collect()[0][0] == 0
    assert figures_of(lake).stuck == ()


@pytest.mark.usefixtures("lakes_in_memory")
def test_the_lake_remembers_nodes_for_when_its_only_seed_is_gone(tmp_path: Path) -> None:
    three = ClusterSettings(nodes=3, replicas=1, vbuckets=VBUCKETS, seed=11)
    with ProducerCluster(three) as cluster:
        fill(cluster, 50)
        seed, *others = cluster.seeds
        settings = settings_for(cluster, tmp_path, source={"seeds": (seed,)})
        run(settings, once=True)
        cluster.wait_until_replicated()
        stop = threading.Event()

        class FailingOver(Collector):
            """A driver that goes on reads what comes after its only seed was failed over."""

            def idle(self, idle: Idle) -> None:
                if not self.idles:
                    cluster.failover(0)
                    fill(cluster, 30, 50)
                super().idle(idle)

            def committed(self, report: RoundReport) -> None:
                super().committed(report)
                if sum(each.rows for each in self.reports) == 30:
                    stop.set()

        heard = FailingOver()
        often = replace(settings, round=replace(settings.round, minimum_interval_seconds=0.1))
        run(often, once=False, observer=heard, stop=stop)
        lake = lake_of(settings)
        assert lake.nodes == f"couchbase://{','.join(sorted(others))}?network=default"
        fill(cluster, 20, 80)
        planned = preview(settings)
        assert isinstance(planned, RoundPlan) and planned.backlog == 20
        assert [each.rows for each in run(settings, once=True).rounds] == [20]
        require_exact(lake, cluster)
        assert complete_seqnos(lake, latest_round(lake)) == {
            vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)
        }
        steps: list[CheckedStep] = []
        check_source(settings, steps.append)
        assert [each.state for each in steps if each.name == "TCP"] == ["warning", "ok"]
        steps.clear()
        no_name = replace(settings, source=replace(settings.source, seeds=("gone.invalid",)))
        check_source(no_name, steps.append)
        resolved = [each.state for each in steps if each.name == "name resolution"]
        assert resolved == ["warning", "ok"]
        encrypted = replace(settings, source=replace(settings.source, tls=True))
        with pytest.raises(NodeUnavailableError, match="none of 1 seeds answers"):
            preview(encrypted)
    port = int(others[0].rpartition(":")[2])
    with (
        ProducerCluster(replace(three, nodes=1, port=port, bucket_uuid="f" * 32)),
        pytest.raises(NodeUnavailableError, match=r"found bucket_uuid .*, expected"),
    ):
        run(settings, once=True)


@pytest.mark.usefixtures("lakes_in_memory")
def test_an_apply_is_indexed_by_the_next_round(cluster: ProducerCluster, tmp_path: Path) -> None:
    settings = settings_for(cluster, tmp_path)
    for start in (0, 20, 40):
        fill(cluster, 20, start)
        run(settings, once=True)
    lake = lake_of(settings)
    rows = lake.changes.rows("round, applied", is_kind(RowKind.APPLIED))
    found = [
        (row["round"], row["applied"]["from_round"], row["applied"]["to_round"]) for row in rows
    ]
    assert sorted(found) == [(2, 0, 1), (3, 1, 2)]


@pytest.mark.parametrize("seed", seeds(1, first=1))
@pytest.mark.slow
@pytest.mark.usefixtures("lakes_in_memory")
def test_every_version_equals_the_source_at_its_complete_seqnos(
    cluster: ProducerCluster, view: Callable[[LakeTables], None], tmp_path: Path, seed: int
) -> None:
    """P1: random writes, deletes and expiries, small budgets, lost connections, restarts."""
    rng = Random(seed)
    print(f"seed {seed}")
    settings = settings_for(
        cluster,
        tmp_path,
        flow_control=SMALL_FLOW,
        round={"target_bytes": 4000, "tasks": 2},
        apply={"when": "every_round"},
    )
    fill(cluster, 250)  # several times the budget of a task: rounds stop inside the snapshots
    inside: list[bool] = []

    def viewed() -> LakeTables:
        lake = lake_of(settings)
        view(lake)
        return lake

    class Disturber(Observer):
        def committed(self, report: RoundReport) -> None:
            if report.round % 3 == 1:
                require_live_exact(viewed(), cluster, report.round)
            seqnos = {each.vbucket: each for each in report.vbuckets}
            inside.append(any(each.seqno > each.complete_seqno for each in seqnos.values()))
            if report.round < 4:
                disturb(cluster, rng)

    for _ in range(2):  # restarts: each run begins from what is durable
        disturb(cluster, rng)
        run(settings, once=True, observer=Disturber())
    lake = viewed()
    assert require_every_version_exact(lake, cluster) >= 2, "one of each run at least"
    require_live_exact(lake, cluster, latest_round(lake))
    require_no_row_twice(lake)
    assert any(inside), "found no round that stopped inside a snapshot"


def disturb(cluster: ProducerCluster, rng: Random) -> None:
    """Write, overwrite (so that snapshots de-duplicate), delete, expire; sometimes cut the line."""
    with cluster.batch():
        for _ in range(rng.randrange(5, 25)):
            key = b"key-%d" % rng.randrange(150)
            kind = rng.random()
            if kind < 0.25:
                with suppress(RefusedError):  # it is not there, or has expired by now
                    cluster.delete(key)
            elif kind < 0.4:
                cluster.set(key, b'{"expires": true}', expiry=1)
            else:
                cluster.set(key, b'{"random": %d}' % rng.randrange(10**6))
        if rng.random() < 0.5:
            cluster.expire_due(cluster.bucket.now() + 10)
    if rng.random() < 0.4:
        cluster.snapshot_cut_after(rng.randrange(1, 15))


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_node_lost_in_mid_round_leaves_the_others_data(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    """P6: the other node's data commits; the vbuckets are reported; the run says so at its end.

    Other ways to lose it need no Spark: ``test_receive.py``.
    """
    fill(cluster, 200)
    settings = settings_for(cluster, tmp_path, source=QUICK_SOURCE, round=QUICK_ROUND)
    heard = Collector()

    class Fault(Collector):
        def planned(self, plan: object, progress: object) -> None:
            cluster.refuse_node(1)
            cluster.drop_connections(1)

        def committed(self, report: RoundReport) -> None:
            heard.committed(report)

    lost = [vb for vb in range(VBUCKETS) if cluster.vbucket_owner(vb) == 1]
    with pytest.raises(IncompleteRunError) as caught:
        run(settings, once=True, observer=Fault())
    assert caught.value.exit_code == 5
    assert f"{len(lost)} vbuckets could not be read" in str(caught.value)
    reasons = {left.vbucket: left.reason for left in heard.reports[0].all_left_out}
    assert sorted(reasons) == lost
    assert set(reasons.values()) == {"node unavailable"}
    lake = lake_of(settings)
    require_exact(lake, cluster)
    seqnos = complete_seqnos(lake, latest_round(lake))
    for vbucket in range(VBUCKETS):
        expected = 0 if vbucket in lost else cluster.high_seqno(vbucket)
        assert seqnos[vbucket] == expected
    cluster.restore_node(1)
    run(settings, once=True)
    require_exact(lake, cluster)
    high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
    assert complete_seqnos(lake, latest_round(lake)) == high
    sent = cluster.counters().seqnos_sent
    assert {vb: sorted(seqnos) for vb, seqnos in sent.items()} == durable_seqnos(lake)


@pytest.mark.slow
def test_the_largest_documents_pass_windows_that_are_smaller(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path
) -> None:
    """As large as kv_engine stores them: 20 MiB, and beside them 1 MiB of system xattrs."""
    body = b'"%s"' % (b"x" * (MAX_VALUE_BYTES - 2))
    text = b'"%s"' % (b"y" * (MAX_SYSTEM_BYTES - 32))  # lengths and the name count
    cluster.set(b"plain", body)
    attributed = join_xattrs([(b"_s", text)], body)
    cluster.set(b"attributed", attributed, datatype=Datatype.XATTR)
    settings = settings_for(
        cluster, tmp_path, flow_control=SMALL_FLOW, filter={"system_xattrs": True}
    )
    run(settings, once=True, spark=spark)
    lake = lake_of(settings, spark)
    found = table_at(lake.location.path("docs")).select(["key", "value", "xattrs"]).to_pylist()
    assert sorted(each["key"] for each in found) == ["attributed", "plain"]
    assert all(each["value"] == body for each in found)
    assert {each["xattrs"] for each in found} == {None, f'{{"_s":{text.decode()}}}'}
    assert verify(settings, spark=spark).result == "equal"
    most_bytes = SMALL_FLOW["window_bytes"] + len(attributed)
    assert len(attributed) < cluster.counters().peak_unacked_bytes < most_bytes + 1024


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_continuous_run_follows_the_bucket_and_stops_when_asked(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 20)
    settings = settings_for(cluster, tmp_path, round={"minimum_interval_seconds": 0.2})
    stop = threading.Event()

    class Writer(Collector):
        def committed(self, report: RoundReport) -> None:
            super().committed(report)
            if report.round < 3:
                fill(cluster, 10, 20 * report.round)
            else:
                stop.set()

    heard = Writer()
    run(settings, once=False, observer=heard, stop=stop)
    assert [report.round for report in heard.reports] == [1, 2, 3]
    require_exact(lake_of(settings), cluster)


@pytest.mark.parametrize(
    ("change", "error"), [({"bucket": "none"}, BucketError), ({}, AuthenticationError)]
)
@pytest.mark.usefixtures("lakes_in_memory")
def test_wrong_password_and_unknown_bucket(
    cluster: ProducerCluster,
    tmp_path: Path,
    change: dict[str, str],
    error: type[Exception],
) -> None:
    settings = settings_for(cluster, tmp_path, source=change)
    if not change:
        Path(settings.source.password_file).write_text("wrong")
    with pytest.raises(error):
        run(settings, once=True)
    assert find_lake(store_without_spark(settings)) is None


@pytest.mark.usefixtures("lakes_in_memory")
def test_another_bucket_in_the_same_lake_is_refused(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 10)
    settings = settings_for(cluster, tmp_path)
    run(settings, once=True)
    with (
        ProducerCluster(ClusterSettings(vbuckets=VBUCKETS, seed=12)) as other,
        pytest.raises(LakeError, match=r"created again, use another lake for it$"),
    ):
        run(settings_for(other, tmp_path), once=True)


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_second_driver_is_refused_at_once_by_the_lock(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    fill(cluster, 10)
    settings = settings_for(cluster, tmp_path)
    errors: list[str] = []

    class Second(Observer):
        def planned(self, plan: object, progress: object) -> None:
            with pytest.raises(FencedError) as caught:
                run(settings, once=True)
            errors.append(str(caught.value))

    run(settings, once=True, observer=Second())
    assert len(errors) == 1
    assert '"pid"' in errors[0]


@pytest.mark.usefixtures("lakes_in_memory")
def test_an_apply_planned_before_another_drivers_is_never_published(
    cluster: ProducerCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P7: paused between planning and MERGE while another driver applies a later round."""
    fill(cluster, 30)
    settings = settings_for(cluster, tmp_path, lake={"root": str(tmp_path / "lake"), "lock": False})
    steps: list[str] = []

    def other_driver(step: str) -> None:
        steps.append(step)
        if steps.count("apply.planned") == 1 and step == "apply.planned":
            fill(cluster, 20, start=20)
            run(settings, once=True)

    monkeypatch.setattr("dcp.lake.apply.applier.reached", other_driver)
    with pytest.raises(FencedError, match="another driver applied to docs"):
        run(settings, once=True)
    assert steps == ["apply.planned", "apply.planned"]
    lake = lake_of(settings)
    assert latest_round(lake) == 2
    require_exact(lake, cluster)


@pytest.mark.usefixtures("lakes_in_memory")
def test_two_drivers_that_alternate_are_told_apart(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    """P7: whoever finds another writer's round after its own first one stops."""
    fill(cluster, 200)
    settings = settings_for(
        cluster,
        tmp_path,
        flow_control=SMALL_FLOW,
        round={"target_bytes": 1500, "tasks": 1},
        lake={"root": str(tmp_path / "lake"), "lock": False},
    )
    stop = threading.Event()
    rounds: list[tuple[str, int]] = []

    class OneRound(Observer):
        def committed(self, report: RoundReport) -> None:
            rounds.append(("second", report.round))
            stop.set()

    class First(Observer):
        def committed(self, report: RoundReport) -> None:
            rounds.append(("first", report.round))
            with pytest.raises(StoppedError):
                run(settings, once=True, observer=OneRound(), stop=stop)

    with pytest.raises(FencedError, match="another driver"):
        run(settings, once=True, observer=First())
    assert rounds == [("first", 1), ("second", 2)]
    lake = lake_of(settings)
    require_exact(lake, cluster)
    run(settings, once=True)
    require_exact(lake, cluster)


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_bucket_that_is_made_anew_behind_a_plan_is_not_read(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    settings = settings_for(cluster, tmp_path)
    access = source_access(settings)
    found = query_cluster(access)
    lake = open_or_create(store_without_spark(settings), settings, found)
    cluster.set(b"key", b"1")
    with closing(Driver(lake, settings, access, Observer())) as driver:
        plan = driver.prepare_round(query_cluster(access))
    assert isinstance(plan, RoundPlan)
    another = replace(lake, identity=replace(lake.identity, bucket_uuid="f" * 32))
    with pytest.raises(BucketError, match=r"created again meanwhile, and nothing of it was read"):
        run_round(another, plan, access, "writer-1")
    assert latest_round(lake) == 0
    assert run_round(lake, plan, access, "writer-1").rows == 1
