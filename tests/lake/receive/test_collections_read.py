"""A task that reads a collection anew: what comes over the network, and what counts of it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dcp.client.addresses import NodeAddress
from dcp.lake.receive.source_access import query_cluster
from dcp.lake.rounds.backfill_plan import BackfillPlan, BackfillRequest, BackfillStream
from dcp.lake.rounds.round_plan import BackfillSource, CollectionsRead, RoundPlan, StreamPlan
from dcp.lake.run.backfills import held_seqnos
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.model.manifest import DEFAULT_ID
from dcp.producer.server.cluster import ProducerCluster
from dcp.protocol.stream import Stream
from tests.lake.receiving import RoundsInProcess, documents_at, item_rows, settings_for


class Scene:
    """A lake that has read a bucket with a small collection beside a large one."""

    def __init__(self, cluster: ProducerCluster, folder: Path) -> None:
        self.cluster = cluster
        self.small = cluster.create_collection("_default", "small")
        self.large = cluster.create_collection("_default", "large")
        for number in range(20):
            cluster.set(b"small-%d" % number, b"old", collection=self.small)
        for number in range(400):
            cluster.set(b"large-%d" % number, b"x" * 500, collection=self.large)
        cluster.delete(b"small-3", collection=self.small)
        self.rounds = RoundsInProcess(settings_for(cluster, folder))
        self.rounds.run()

    def plan(self, collection: int) -> RoundPlan:
        """Plan to read a collection anew."""
        rounds, collections = self.rounds, frozenset({collection})
        node = NodeAddress.parse(self.cluster.seeds[0])
        source, view = BackfillSource(reads_replicas=False), query_cluster(rounds.access)
        request = BackfillRequest("", frozenset({0}), source, 0, collections=collections)
        seqno = held_seqnos(view, rounds.access, request)[node][0]
        stream = BackfillStream(node, view.high_seqnos[0], True, collections, seqno)
        plan = rounds.plan(BackfillPlan(source, {0: stream}))
        assert plan is not None
        return plan


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ProducerCluster(ClusterSettings(vbuckets=1, seed=3, checkpoint_items=10)) as cluster:
        yield Scene(cluster, tmp_path)


@pytest.fixture
def whole_snapshots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The out-of-order snapshots that came to their end, by vbucket."""
    ended: list[int] = []
    finish = Stream.finish_oso

    def finish_oso(stream: Stream) -> Stream:
        ended.append(stream.vbucket)
        return finish(stream)

    monkeypatch.setattr(Stream, "finish_oso", finish_oso)
    return ended


def test_only_the_collection_is_sent_and_then_what_is_new_of_all(
    scene: Scene, whole_snapshots: list[int]
) -> None:
    complete = scene.rounds.states[0].complete_seqno
    scene.cluster.set(b"small-4", b"new", collection=scene.small)
    scene.cluster.set(b"large-4", b"new", collection=scene.large)
    sent = scene.cluster.counters().bytes_sent
    plan = scene.plan(scene.small)
    rows = scene.rounds.run(plan)
    done = [each.seqnos for each in scene.rounds.done]
    assert done == sorted(done)
    assert 0 < done[-1] <= plan.backlog
    assert whole_snapshots == [0], "its documents came in the order of their keys"
    assert scene.cluster.counters().bytes_sent - sent < 20_000, "the large one was not sent"
    state = scene.rounds.states[0]
    assert (state.epoch, state.complete_seqno) == (1, complete + 2)
    found = item_rows(rows)
    assert {row["epoch"] for row in found} == {1}
    assert len({row["seqno"] for row in found}) == len(found), "nothing came twice"
    assert {row["key"] for row in found if row["seqno"] > complete} == {"small-4", "large-4"}
    assert {row["collection_id"] for row in found if row["seqno"] <= complete} == {scene.small}
    wanted = {b"small-%d" % number for number in range(20) if number != 3}
    assert documents_at(rows, 0, state.complete_seqno).keys() == {*wanted, b"large-4"}
    assert kinds(rows, "rollback", "backfill") == ["backfill", "rollback"]
    assert status(rows)["rows"] == len(found)


def test_a_collection_without_documents(scene: Scene) -> None:
    rows = scene.rounds.run(scene.plan(DEFAULT_ID))
    assert item_rows(rows) == []
    assert scene.rounds.states[0].epoch == 1
    assert kinds(rows, "rollback", "backfill") == ["backfill", "rollback"], "its rows are gone"


def test_a_flush_that_the_stream_meets_counts_for_what_it_brought(scene: Scene) -> None:
    """A copy may send documents, then the flush that ends them: the lake has it in an old epoch."""
    scene.cluster.flush_collection("_default", "small")
    scene.cluster.set(b"small-1", b"new", collection=scene.small)
    scene.rounds.run()
    rows = scene.rounds.run(scene.plan(scene.small))
    assert scene.rounds.states[0].epoch == 1
    flush = max(
        row["seqno"]
        for row in rows
        if row["kind"] == "system_event" and row["collection_id"] == scene.small
    )
    own = [row for row in item_rows(rows) if row["collection_id"] == scene.small]
    assert {row["key"] for row in own if row["seqno"] > flush} == {"small-1"}


def test_a_stream_that_ends_inside_an_out_of_order_snapshot_counts_for_nothing(
    scene: Scene,
) -> None:
    scene.cluster.snapshot_cut_after(7)
    rows = scene.rounds.run(scene.plan(scene.small))
    assert "no part of an out-of-order snapshot can be" in status(rows)["detail"]
    state = scene.rounds.states[0]
    assert (state.epoch, state.is_whole) == (2, True), "no row of epoch 1 counts"
    assert kinds(rows, "rollback", "backfill") == ["rollback", "rollback"]
    rows = scene.rounds.run(scene.plan(scene.small))
    assert kinds(rows, "rollback", "backfill") == ["backfill", "rollback"]


@pytest.mark.parametrize(
    ("more_seqnos", "other_branch", "detail"),
    [
        (10_000, 0, "did not come to seqno"),
        (0, 1, "the active node lacks what was read"),
    ],
)
def test_what_the_active_node_does_not_have_counts_for_nothing(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    more_seqnos: int,
    other_branch: int,
    detail: str,
) -> None:
    """The copy was ahead of its active node, or on the branch of one that failed."""
    after_collections = StreamPlan.after_collections

    def after(stream: StreamPlan, read: CollectionsRead) -> StreamPlan:
        other = CollectionsRead(read.seqno + more_seqnos, read.vb_uuid ^ other_branch)
        return after_collections(stream, other)

    monkeypatch.setattr(StreamPlan, "after_collections", after)
    rows = scene.rounds.run(scene.plan(scene.small))
    assert detail in status(rows)["detail"]
    assert scene.rounds.states[0].epoch == 2
    assert kinds(rows, "rollback", "backfill") == ["rollback", "rollback"]


def kinds(rows: Iterable[Mapping[str, Any]], *wanted: str) -> list[str]:
    return sorted(row["kind"] for row in rows if row["kind"] in wanted)


def status(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    [detail] = [row["detail"] for row in rows if row["kind"] == "status"]
    told: dict[str, Any] = json.loads(detail)
    return told
