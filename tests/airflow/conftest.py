"""Airflow in its own environment, a database of its own, and a producer to replicate from."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.quick_spark import QUICK_JAVA_OPTIONS, QUICK_SQL_CONF, spark_conf_toml

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-airflow"
DAGS = ROOT / "airflow" / "dags"

SETUP_SECONDS = 900
PASSWORD = "correct horse"


@dataclass(frozen=True, slots=True)
class Airflow:
    """An Airflow home; its database is made."""

    environment: Mapping[str, str]

    def run(
        self, *command: str, timeout_seconds: float = 120, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the Airflow environment; the output is one text, errors included."""
        return subprocess.run(
            [VENV / "bin" / command[0], *command[1:]],
            cwd=ROOT,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    setup = subprocess.run(
        ["make", "airflow-setup"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SETUP_SECONDS,
        check=False,
    )
    assert setup.returncode == 0, f"make airflow-setup failed:\n{setup.stdout}{setup.stderr}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    home = tmp_path_factory.mktemp("airflow")
    made = Airflow(
        kept
        | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_DCPLAKE_SPARK": json.dumps(
                {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
            ),
            "DCPLAKE_DAG_VENV": sys.prefix,
            "DCPLAKE_DAG_DRIVER_MEMORY": "1500m",
            "DCPLAKE_PASSWORD": PASSWORD,
            "JAVA_TOOL_OPTIONS": QUICK_JAVA_OPTIONS,
        }
    )
    migrated = made.run("airflow", "db", "migrate")
    assert migrated.returncode == 0, migrated.stdout
    return made


_OURS = ("AIRFLOW", "DCPLAKE_", "PYTHON", "PYSPARK_", "SPARK_")


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(nodes=2, vbuckets=16, users={"ada": PASSWORD}, seed=7)
    with ProducerCluster(settings) as running:
        yield running


@pytest.fixture
def config(cluster: ProducerCluster, tmp_path: Path) -> Path:
    """Settings that replicate ``cluster`` into ``tmp_path / "lake"``."""
    path = tmp_path / "dcplake.toml"
    path.write_text(
        f'[source]\nseeds = {json.dumps(cluster.seeds)}\nbucket = "default"\n'
        'username = "ada"\n[round]\nquiet_seconds = 1\n'
        f"[lake]\nroot = {json.dumps(str(tmp_path / 'lake'))}\n" + spark_conf_toml(QUICK_SQL_CONF)
    )
    return path
