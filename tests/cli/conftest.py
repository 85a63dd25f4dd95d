"""A producer, a configuration file and a lake for the commands."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.cluster_settings import ClusterSettings


@dataclass(frozen=True)
class World:
    """Where the commands work."""

    cluster: ProducerCluster
    config: Path
    lake: Path

    @property
    def seeds(self) -> str:
        return ",".join(self.cluster.seeds)


@pytest.fixture
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """Both ways to the password: a session's tasks know the environment that it began with.

    The parameter is the bucket's name.
    """
    bucket = getattr(request, "param", "default")
    monkeypatch.setenv("DCPLAKE_PASSWORD", "secret-of-the-test")
    password = tmp_path / "password"
    password.write_text("secret-of-the-test\n")
    users = {"tester": "secret-of-the-test"}
    settings = ClusterSettings(nodes=2, vbuckets=8, bucket=bucket, users=users, seed=7)
    with ProducerCluster(settings) as cluster:
        seeds = ", ".join(f'"{seed}"' for seed in cluster.seeds)
        config = tmp_path / "dcplake.toml"
        config.write_text(
            f'[source]\nseeds = [{seeds}]\nusername = "tester"\nbucket = "{bucket}"\n'
            f'password_file = "{password}"\n'
            f'[lake]\nroot = "{tmp_path / "lake"}"\n'
            '[spark]\nmaster = "local[2]"\n'
        )
        yield World(cluster, config, tmp_path / "lake")
