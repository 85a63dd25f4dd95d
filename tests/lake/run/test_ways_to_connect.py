"""Runs by a connection string: encrypted, in the external network, with a secret that rotates."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dcp.errors import LakeError
from dcp.lake.config.settings import Settings
from dcp.lake.rounds.observer import Observer, Wait
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import run
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.bucket.auth import UserStore
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import require_every_version_exact, require_no_row_twice
from tests.producer.tls import CERTIFICATE, TLS_FILES

pytestmark = pytest.mark.usefixtures("lakes_in_memory")

OURS = ClusterSettings(
    nodes=2,
    vbuckets=4,
    seed=11,
    users={"ada": "first"},
    tls=TLS_FILES,
    external_host="localhost",
    bucket_uuid="one bucket",
    cluster_uuid="ours",
)


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(OURS) as cluster:
        yield cluster


def connecting(cluster: ProducerCluster, folder: Path) -> Settings:
    hosts = ",".join(seed.replace("127.0.0.1", "localhost") for seed in cluster.tls_seeds)
    source = {
        "seeds": tuple(f"couchbases://{hosts}".split(",")),
        "tls_ca_file": CERTIFICATE,
        "username": "",
        "password_file": "",
        "credentials_folder": str(folder / "secret"),
    }
    rounds = {"minimum_interval_seconds": 0.2}
    return settings_for(cluster, folder, source=source, round=rounds)


def mount(folder: Path, user: str, password: str) -> None:
    """Put a secret into a folder as Kubernetes does: all files change at once."""
    state = folder / f"..{user}"
    state.mkdir(parents=True)
    (state / "username").write_text(user)
    (state / "password").write_text(password)
    (folder / "..new").symlink_to(state.name)
    (folder / "..new").rename(folder / "..data")


class Rotating(Observer):
    """After the first round the cluster has another user; the files, only once that was noticed."""

    def __init__(self, cluster: ProducerCluster, secret: Path, stop: threading.Event) -> None:
        self.rounds: list[RoundReport] = []
        self.nodes: set[str] = set()
        self.reasons: list[str] = []
        self._cluster, self._secret, self._stop = cluster, secret, stop

    def planned(self, plan: object, _: object) -> None:
        self.nodes |= {str(node) for task in plan.tasks for node in task.nodes}  # type: ignore[attr-defined]  # a RoundPlan

    def committed(self, report: RoundReport) -> None:
        self.rounds.append(report)
        if report.round == 2:
            self._stop.set()
            return
        for number in range(20):
            self._cluster.set(b"later-%d" % number, b"{}")
        self._cluster.bucket.users = UserStore({"ben": "second"})

    def waiting(self, _: float, wait: Wait) -> None:
        if "user, password" in wait.reason and not self.reasons:
            self.reasons.append(wait.reason)
            mount(self._secret, "ben", "second")


def test_a_run_goes_on_with_a_rotated_secret_and_knows_its_cluster(
    cluster: ProducerCluster, tmp_path: Path
) -> None:
    for number in range(100):
        cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
    settings = connecting(cluster, tmp_path)
    mount(tmp_path / "secret", "ada", "first")
    stop = threading.Event()
    heard = Rotating(cluster, tmp_path / "secret", stop)
    run(settings, once=False, observer=heard, stop=stop)
    assert [report.rows for report in heard.rounds] == [100, 20]
    assert heard.nodes == {seed.replace("127.0.0.1", "localhost") for seed in cluster.tls_seeds}
    assert "the name 'ada' and the password" in heard.reasons[0]
    assert "first" not in heard.reasons[0]
    lake = lake_of(settings)
    assert lake.identity.cluster_uuid == "ours"
    require_every_version_exact(lake, cluster)
    require_no_row_twice(lake)
    users = {"ben": "second"}
    with ProducerCluster(replace(OURS, cluster_uuid="others", users=users)) as other:
        elsewhere = connecting(other, tmp_path)
        with pytest.raises(LakeError, match=r"cluster with uuid 'ours', found .* 'others'"):
            preview(elsewhere)
        with pytest.raises(LakeError, match=r"found .* 'others'; it is another"):
            run(elsewhere, once=True)
    with ProducerCluster(replace(OURS, cluster_uuid="", users=users)) as older:
        preview(connecting(older, tmp_path))  # a server that does not tell is no other one
