"""``dcplake resync``: the way out of a lake that somebody damaged, and of a policy that fails."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dcp.errors import ConfigError, IncompleteRunError, LakeError
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.rounds.round_plan import Idle, ReadAgain, RoundPlan
from dcp.lake.run.control_requests import Requests, ask
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import run
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.lake_tables import DOCS
from dcp.lake.tables.vbucket_state import Restart, RestartReason
from dcp.lake.verify.compare import verify
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.records import plain
from tests.lake.figures import figures_of
from tests.lake.memory_store import MemoryStore
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import rows_of, source_rows, table_rows
from tests.lake.versions import version_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dcp.lake.config.settings import Settings
    from dcp.lake.tables.applied_version import AppliedVersion
    from dcp.lake.tables.lake_tables import LakeTables

pytestmark = pytest.mark.timeout(600)

VBUCKETS = 4


def high(cluster: ProducerCluster) -> dict[int, int]:
    return {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}


@pytest.mark.usefixtures("lakes_in_memory")
def test_plan_sees_what_was_asked_of_the_driver(tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=9)) as cluster:
        for number in range(40):
            cluster.set(b"key-%d" % number, b"1")
        settings = settings_for(cluster, tmp_path)
        run(settings, once=True)
        assert isinstance(preview(settings), Idle)
        ask(settings, RequestAction.RESYNC, [1, 2])
        plan = preview(settings)
        assert isinstance(plan, RoundPlan)
        assert {each.restart for each in plan.streams} == {
            Restart(vbucket, RestartReason.RESYNC) for vbucket in (1, 2)
        }
        ask(settings, RequestAction.PAUSE)
        assert "the lake is paused by " in str(preview(settings))
        ask(settings, RequestAction.RESUME)
        wrong = ControlRequest.new(RequestAction.PAUSE, None, {"an": "option"})
        Control(lake_of(settings)).write(wrong, RequestState.REQUESTED)
        assert "the lake is paused by " not in str(preview(settings)), "the driver will refuse it"
        run(settings, once=True)
        assert isinstance(preview(settings), Idle)


@pytest.mark.usefixtures("lakes_in_memory")
def test_resync_mends_whatever_was_done_to_a_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=9)) as cluster:
        for number in range(40):
            cluster.set(b"key-%d" % number, b'{"n": 1}')
        settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})
        run(settings, once=True)
        lake = lake_of(settings)
        with pytest.raises(ConfigError, match=r"found 4, 9, expected some of 0-3"):
            ask(settings, RequestAction.RESYNC, [1, 4, 9])

        # Two vbuckets of a healthy lake: the others are not streamed again.
        opened = cluster.counters().streams_opened
        newest = latest_round(lake)
        ask(settings, RequestAction.RESYNC, [1, 2])
        assert latest_round(lake) == newest, "the next run does it"
        run(settings, once=True)
        again = cluster.counters().streams_opened
        assert {vb for vb in again if again[vb] != opened[vb]} == {1, 2}
        assert {undo.vbucket for undo in _newest(lake).undone} == {1, 2}
        assert table_rows(lake, None) == source_rows(cluster, high(cluster))

        # The log is emptied, the table tampered with, and documents go on changing.
        for number in range(20):
            cluster.delete(b"key-%d" % number)
        docs = lake.table(DOCS.name)
        lake.changes.delete(None, {})
        docs.delete("vbucket = 3", {})
        with pytest.raises(LakeError, match=r"changes: .*DELETE.* dcplake resync"):
            run(settings, once=True)
        refused = ask(settings, RequestAction.RESYNC, [1])
        with pytest.raises(LakeError, match=r"changes: .*DELETE.* dcplake resync"):
            run(settings, once=True)
        assert Control(lake).request(refused.id).state is RequestState.REFUSED
        ask(settings, RequestAction.RESYNC)

        # Somebody adds a row when the keys that go are known already: it must not stay.
        def add_first(*arguments: Any) -> None:
            row = next(row for row in version_in(lake, DOCS.name).to_pylist() if not row["vbucket"])
            docs.append(pa.Table.from_pylist([row | {"key": "another"}], docs.columns()), {})

        with monkeypatch.context() as patched:
            patched.setattr("dcp.lake.apply.commit.first_rows", add_first)
            with pytest.raises(LakeError, match=r"found other rows at version"):
                run(settings, once=True)
        assert b"another" in table_rows(lake, None)[0]
        run(settings, once=True)
        assert table_rows(lake, None) == source_rows(cluster, high(cluster))

        # The whole log is put back from a copy that is older than the table.
        assert isinstance(lake.store, MemoryStore)
        kept = lake.store.kept
        older = replace(kept[CHANGES_TABLE], versions=[*kept[CHANGES_TABLE].versions])
        cluster.set(b"key-1", b'{"n": 2}')
        run(settings, once=True)
        kept[CHANGES_TABLE] = older
        lake = lake_of(settings)
        with pytest.raises(LakeError, match=r"expected no replica table ahead of changes.*resync"):
            run(settings, once=True)
        ask(settings, RequestAction.RESYNC)
        run(settings, once=True)
        assert table_rows(lake, None) == source_rows(cluster, high(cluster))
        assert figures_of(lake).warnings == ()


def _newest(lake: "LakeTables") -> "AppliedVersion":
    applied = replica_status(lake, DOCS).applied
    assert applied is not None
    return applied


@pytest.mark.slow
def test_the_policy_fail_reports_and_resync_is_the_way_on(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """The documents to read again are estimated: before the order, and while it waits."""
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=10)) as cluster:
        for number in range(20):
            cluster.set(b"key-%d" % number, b'{"n": 1}')
        settings = settings_for(
            cluster, tmp_path, round={"quiet_seconds": 0.2}, policy={"rollback": "fail"}
        )
        run(settings, once=True, spark=spark)
        lake = lake_of(settings, spark)
        before = rows_of(lake, lake.table_sql(DOCS.name))
        cluster.set(b"key-1", b'{"n": 2}')
        assert _read_again(settings) is None, "a node that agrees orders nothing"
        cluster.crash_restart(0, lost_seqnos=2)
        again = _read_again(settings)
        with pytest.raises(IncompleteRunError, match=r"policy.rollback is fail.*dcplake plan"):
            run(settings, once=True, spark=spark)
        assert rows_of(lake, lake.table_sql(DOCS.name)) == before
        assert again == _read_again(settings)
        assert again is not None and again.documents == sum(map(cluster.high_seqno, again.vbuckets))
        assert set(again.vbuckets) == {vb for vb in range(VBUCKETS) if cluster.high_seqno(vb)}
        [reason] = {report.reason for report in figures_of(lake).stuck}
        assert reason == "rollback"
        report = verify(settings, spark=spark)
        assert (report.differing, {left.reason for left in report.not_compared}) == (0, {reason})
        ask(settings, RequestAction.RESYNC)
        run(settings, once=True, spark=spark)
        assert table_rows(lake, None) == source_rows(cluster, high(cluster))

        # A deletion that the lake has not read, and that the node forgets.
        vbucket = cluster.vbucket_of(b"key-1")
        complete, rows = cluster.high_seqno(vbucket), len(table_rows(lake, None)[vbucket])
        cluster.delete(b"key-1")
        for number in range(2, 20):
            cluster.set(b"key-%d" % number, b'{"n": 3}')
        assert _read_again(settings) is None
        assert cluster.purge_tombstones(vbucket) == 1
        again = _read_again(settings)
        assert again is not None
        most = min(cluster.high_seqno(vbucket), rows + cluster.high_seqno(vbucket) - complete)
        assert (again.vbuckets, again.documents) == ((vbucket,), most)
        assert again.bytes == pytest.approx(again.documents * 100, rel=0.5)


def _read_again(settings: "Settings") -> ReadAgain | None:
    """Return what ``dcplake plan`` says will be read again, having written nothing."""
    plan = preview(settings)
    assert plan.outlook is not None
    again = plan.outlook.read_again
    assert plan.to_json()["read_again"] == plain(again)
    assert again is None or f"at most {again.documents} documents, about " in str(plan)
    assert again is None or "policy.rollback is fail: they stay as they are" in str(plan)
    return again


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_resync_mends_a_table_while_a_vbucket_has_no_node(tmp_path: Path) -> None:
    """All vbuckets begin at once, so that no row which somebody changed can stay."""
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=9)) as cluster:
        for number in range(40):
            cluster.set(b"key-%d" % number, b'{"n": 1}')
        patient = {"quiet_seconds": 0.2, "node_deadline_seconds": 1.0}
        settings = settings_for(cluster, tmp_path, round=patient)
        run(settings, once=True)
        lake = lake_of(settings)
        lake.table(DOCS.name).delete("vbucket = 0", {})
        cluster.kill_node(1)
        asked = ask(settings, RequestAction.RESYNC)
        with pytest.raises(IncompleteRunError):
            run(settings, once=True)
        assert Control(lake).request(asked.id).state is RequestState.DONE
        cluster.restore_node(1)
        run(settings, once=True)
        assert table_rows(lake, None) == source_rows(cluster, high(cluster))


@pytest.mark.usefixtures("lakes_in_memory")
def test_only_a_request_that_a_driver_has_begun_lets_vbuckets_begin_anew(tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=9)) as cluster:
        cluster.set(b"key", b"1")
        settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})
        run(settings, once=True)
        lake = lake_of(settings)
        control = Control(lake)
        requests = Requests(lake, control, "writer", ())
        asked = ask(settings, RequestAction.RESYNC, [1, 2])
        wrong = ControlRequest.new(RequestAction.RESYNC, "1", {"an": "option"})
        control.write(wrong, RequestState.REQUESTED)
        lake = lake_of(settings)
        assert requests.resyncs() == {}
        looking = Requests(lake, Control(lake, writes=False), "nobody", ())
        looking.carry_out()
        assert looking.resyncs() == {1: 1, 2: 1}
        assert requests.resyncs() == {}, "nothing is written"
        requests.carry_out()
        assert requests.resyncs() == {1: 1, 2: 1}
        states = {each.id: each.state for each in control.requests()}
        assert states == {asked.id: RequestState.BEGUN, wrong.id: RequestState.REFUSED}


@pytest.mark.usefixtures("lakes_in_memory")
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (ControlRequest.new(RequestAction.RESYNC, "99", {}), r"vbuckets: found 99, expected some"),
        (ControlRequest.new(RequestAction.RESYNC, "one", {}), r"vbuckets: found 'one', expected"),
        (ControlRequest.new(RequestAction.RESYNC, "1", {"an": 1}), r"options: found .*expected"),
        (
            replace(ControlRequest.new(RequestAction.RESYNC, "1", {}), round=10**6),
            r"round: found 1000000, expected at most 1",
        ),
        (replace(ControlRequest.new(RequestAction.RESYNC, "1", {}), action="dance"), r"action: "),
    ],
)
def test_a_row_of_a_begun_resync_that_no_driver_wrote_is_refused(
    written: ControlRequest, expected: str, tmp_path: Path
) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=9)) as cluster:
        cluster.set(b"key", b"1")
        settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})
        run(settings, once=True)
        control = Control(lake_of(settings))
        control.write(written, RequestState.REQUESTED)
        control.write(written, RequestState.BEGUN, written.round)
        assert isinstance(preview(settings), Idle)
        run(settings, once=True)
        answered = control.request(written.id)
        assert answered.state is RequestState.REFUSED
        assert re.match(expected, answered.detail)
