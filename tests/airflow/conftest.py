"""Airflow in its own environment, a database of its own, and a producer to replicate from."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.quick_spark import QUICK_JAVA_OPTIONS, QUICK_SQL_CONF, spark_conf_toml

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-airflow"
DAGS = ROOT / "airflow" / "dags"

SETUP_SECONDS = 900
WAIT_SECONDS = 600
PASSWORD = "correct horse"
COMPONENTS = "airflow scheduler & airflow dag-processor & airflow api-server & wait -n"

CALLBACK = """
import json, os

def record(context):
    told = [context["ti"].task_id, context["ti"].try_number, str(context.get("exception"))]
    with open(os.environ["RECORD"], "a") as file:
        print(json.dumps(told), file=file)
"""


@dataclass(frozen=True, slots=True)
class Airflow:
    """An Airflow home; its database is made, and it has the callback ``notify.record``."""

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

    @contextmanager
    def scheduled(self, output: Path, **variables: str) -> Iterator["Api"]:
        """Run Airflow with its scheduler; what it prints goes to ``output``.

        As ``airflow standalone`` does, which would run a triggerer too: no DAG here defers.
        """
        api, logs = free_ports(2)
        environment = {
            **self.environment,
            "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "AIRFLOW__API__PORT": str(api),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{api}",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # of a busy machine
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(logs),
            **variables,
        }
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", COMPONENTS],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Api(f"http://127.0.0.1:{api}/api/v2/", process, output)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True, slots=True)
class Api:
    """Airflow's REST interface, of a process that runs."""

    url: str
    process: subprocess.Popen[bytes]
    output: Path

    def ask(self, path: str, body: object = None) -> Any:
        """Ask for a page of it, or post to it."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def wait_for(self, what: str, look: Callable[[], Any]) -> Any:
        """Look until it is there; a refused or unknown page is not."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            with suppress(OSError):
                if found := look():
                    return found
            told = self.output.read_text()
            assert self.process.poll() is None, told
            assert time.monotonic() < end, f"{what} did not come:\n{told}"
            time.sleep(4)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has now."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]


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
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    home = tmp_path_factory.mktemp("airflow")
    (home / "plugins").mkdir()
    (home / "plugins" / "notify.py").write_text(CALLBACK)
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


OURS = ("AIRFLOW", "DCPLAKE_", "PYTHON", "PYSPARK_", "SPARK_")


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
