"""A producer, a configuration file and a lake for the commands."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings


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
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The parameter is the bucket's name."""
    with world_in(tmp_path, getattr(request, "param", "default")) as world:
        yield world


@contextmanager
def world_in(folder: Path, bucket: str = "default") -> Iterator[World]:
    """Both ways to the password: a session's tasks know the environment that it began with."""
    password = folder / "password"
    password.write_text("secret-of-the-test\n")
    users = {"tester": "secret-of-the-test"}
    settings = ClusterSettings(nodes=2, vbuckets=8, bucket=bucket, users=users, seed=7)
    with pytest.MonkeyPatch.context() as patched, ProducerCluster(settings) as cluster:
        patched.setenv("DCPLAKE_PASSWORD", "secret-of-the-test")
        seeds = ", ".join(f'"{seed}"' for seed in cluster.seeds)
        config = folder / "dcplake.toml"
        config.write_text(
            f'[source]\nseeds = [{seeds}]\nusername = "tester"\nbucket = "{bucket}"\n'
            f'password_file = "{password}"\n'
            f'[lake]\nroot = "{folder / "lake"}"\n'
            '[spark]\nmaster = "local[2]"\n'
        )
        yield World(cluster, config, folder / "lake")
