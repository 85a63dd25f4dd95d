"""``policy.persist_to``: what a failover takes back was never published."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.probe import persisted_seqnos
from dcp.errors import ConfigError, IncompleteRunError
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.rounds.observer import Observer
from dcp.lake.run import persistence_gate
from dcp.lake.run.persistence_gate import NO_DISKS
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import apply_pending, run
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.bucket_type import BucketType
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import require_every_version_exact, source_rows, table_rows

pytestmark = pytest.mark.usefixtures("lakes_in_memory")

VBUCKETS = 4


def test_nothing_is_published_that_a_failover_takes_back(tmp_path: Path) -> None:
    bucket = ClusterSettings(nodes=2, vbuckets=VBUCKETS, replicas=1, seed=61)
    with ProducerCluster(bucket) as cluster:
        settings = settings_for(
            cluster, tmp_path, policy={"persist_to": 2}, round={"node_deadline_seconds": 5.0}
        )
        write(cluster, 0)
        run(settings, once=True)
        lake = lake_of(settings)
        published = held(cluster)
        assert table_rows(lake, None) == published

        cluster.pause_replication()
        write(cluster, 10)
        refused = r"vbuckets 0-3 are not on the disks of the active node and 1 replica yet"
        with pytest.raises(IncompleteRunError, match=refused):
            run(settings, once=True)
        with pytest.raises(IncompleteRunError, match=refused):
            apply_pending(settings, observer=Observer())
        assert table_rows(lake, None) == published, "what is on one node only"

        cluster.failover(0)
        cluster.resume_replication()
        write(cluster, 20)
        one = replace(settings, policy=replace(settings.policy, persist_to=1))
        run(one, once=True)
        assert table_rows(lake, None) == held(cluster)
        assert require_every_version_exact(lake, cluster) >= 2
        assert not lake.table(AUDIT_TABLE).exists(), "nothing was undone"

        three = replace(settings, policy=replace(settings.policy, persist_to=3))
        write(cluster, 30)
        refused = r"persist_to: found 3, expected at most 2: the bucket has 1 replica,"
        with pytest.raises(ConfigError, match=refused):
            preview(three)
        with pytest.raises(ConfigError, match=refused):
            run(three, once=True)


def test_a_node_that_was_active_when_the_map_was_read_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = ClusterSettings(nodes=2, vbuckets=1, replicas=1, unpersisted_seqnos=2, seed=7)
    with ProducerCluster(bucket) as cluster:
        settings = settings_for(
            cluster, tmp_path, policy={"persist_to": 1}, round={"node_deadline_seconds": 0.5}
        )
        write(cluster, 0)
        cluster.wait_until_replicated()

        def ask_after_a_move(*asked: Any) -> dict[int, dict[NodeAddress, int]]:
            monkeypatch.undo()
            cluster.move_vbucket(0, 1 - cluster.vbucket_owner(0))
            cluster.wait_until_replicated()
            return persisted_seqnos(*asked)

        monkeypatch.setattr(persistence_gate, "persisted_seqnos", ask_after_a_move)
        assert cluster.persisted_seqno(0) < cluster.high_seqno(0)
        with pytest.raises(IncompleteRunError, match="vbuckets 0 are not on the active node's"):
            run(settings, once=True)


def test_an_ephemeral_bucket_has_no_disk_and_is_published_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = ClusterSettings(vbuckets=VBUCKETS, bucket_type=BucketType.EPHEMERAL)
    with ProducerCluster(bucket) as cluster:
        write(cluster, 0)
        settings = settings_for(
            cluster, tmp_path, policy={"persist_to": 1}, round={"node_deadline_seconds": 5.0}
        )
        assert NO_DISKS in str(preview(settings))
        run(settings, once=True)
        lake = lake_of(settings)
        assert table_rows(lake, None) == held(cluster)
        assert caplog.messages.count(NO_DISKS) == 1


def write(cluster: ProducerCluster, first: int) -> None:
    for number in range(first, first + 20):
        cluster.set(b"key-%d" % number, b'{"written": %d}' % first)


def held(cluster: ProducerCluster) -> dict[int, dict[bytes, tuple[int, int, bytes]]]:
    return source_rows(cluster, {vb: cluster.high_seqno(vb) for vb in range(VBUCKETS)})
