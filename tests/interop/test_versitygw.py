"""Lakes on a second, independent S3 server, so that nothing here is a habit of moto's."""

import subprocess
import sys
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.interop.store_servers import versitygw
from tests.lake.commit_race import require_that_only_ours_loses_nothing
from tests.lake.receiving import settings_for, write_config
from tests.lake.replicas import source_rows

pytestmark = pytest.mark.interop


@pytest.mark.timeout(900)
def test_two_drivers_that_commit_in_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    with versitygw(tmp_path / "server") as server:
        require_that_only_ours_loses_nothing(server.options["endpoint"], tmp_path)


@pytest.mark.timeout(900)
def test_a_lake_is_loaded_rolled_back_and_maintained(tmp_path: Path) -> None:
    with (
        versitygw(tmp_path / "server") as server,
        ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=3)) as cluster,
    ):
        source = settings_for(cluster, tmp_path).source
        config = write_config(source, server.root, server.options, "local[2]", tmp_path)

        def done(*words: str) -> str:
            command = [sys.executable, "-m", "dcp.cli.main", *words, "--config", str(config)]
            ended = subprocess.run(command, check=False, capture_output=True, text=True)
            assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
            return ended.stdout

        for number in range(100):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
        done("run", "--once")
        for node in (0, 1):
            cluster.crash_restart(node, lost_seqnos=3)
        for number in range(90, 120):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % -number)
        assert "rolled back" in done("run", "--once")
        assert "optimize changes" in done("maintain")
        done("verify")
        counted = done("sql", "SELECT count(*) AS documents FROM docs")
        high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(4)}
        assert str(sum(map(len, source_rows(cluster, high).values()))) in counted
