"""``jobs/replicate.py`` on a Spark cluster of some processes, in the Python that the user names."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from dcp.lake.spark.java import find_java_home
from dcp.lake.spark.session import python_of_tasks
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.quick_spark import QUICK_JAVA_OPTIONS, QUICK_SQL_CONF

ROOT: Final = Path(__file__).parents[3]
BIN: Final = Path(sys.executable).parent
SECONDS: Final = 300.0
HOST: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
ON_LOOPBACK: Final = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_PUBLIC_DNS": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.mark.parametrize(
    ("configured", "variable", "master", "expected"),
    [
        ("theirs", "other", "local[2]", "theirs"),
        ("theirs", "other", "spark://h:7077", "theirs"),
        (None, "other", "yarn", "other"),
        (None, "other", "local[2]", sys.executable),
        (None, "", "yarn", sys.executable),
    ],
)
def test_which_python_tasks_run_in(
    monkeypatch: pytest.MonkeyPatch,
    configured: str | None,
    variable: str,
    master: str,
    expected: str,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", variable)
    assert python_of_tasks(configured, master) == expected


def environment() -> dict[str, str]:
    """Return what an activated environment has, on loopback."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return os.environ | ON_LOOPBACK | {"PATH": path, "JAVA_HOME": str(find_java_home())}


@contextmanager
def daemon(log: Path, ready: str, *words: str) -> Iterator[str]:
    """Run a process of Spark's, and give what it logs when it is ready."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [BIN / "spark-class", *words],
            env=environment(),
            stdout=output,
            stderr=output,
        )
    try:
        end = time.monotonic() + SECONDS
        while (found := re.search(ready, log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield found[0]
    finally:
        process.terminate()  # a worker ends its executors
        process.wait(SECONDS)


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Run a master and two workers of one core each; give the master's address."""
    name = "org.apache.spark.deploy"
    with ExitStack() as stack:
        master = stack.enter_context(
            daemon(
                folder / "master.log", r"spark://127\.0\.0\.1:\d+", f"{name}.master.Master", *HOST
            )
        )
        for number in (1, 2):
            words = (f"{name}.worker.Worker", *HOST, "--cores", "1", "--memory", "600m")
            place = ("--work-dir", str(folder / f"worker-{number}"), master)
            log = folder / f"worker-{number}.log"
            stack.enter_context(daemon(log, "Successfully registered", *words, *place))
        yield master


@pytest.mark.slow
def test_the_job_runs_on_two_workers_in_the_users_python(tmp_path: Path) -> None:
    theirs, started = tmp_path / "their-python", tmp_path / "started"
    theirs.write_text(f'#!/bin/sh\necho "$PWD $@" >>{started}\nexec {sys.executable} "$@"\n')
    theirs.chmod(0o755)
    (tmp_path / "password").write_text("password")
    conf = QUICK_SQL_CONF | {
        "spark.pyspark.python": str(theirs),
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    with (
        ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=3)) as cluster,
        standalone_cluster(tmp_path) as master,
    ):
        for number in range(100):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
        config = tmp_path / "run.toml"
        config.write_text(
            f'[source]\nseeds = {json.dumps(cluster.seeds)}\nusername = "Administrator"\n'
            f'password_file = "{tmp_path / "password"}"\n[lake]\nroot = "{tmp_path / "lake"}"\n'
            "[round]\ntasks = 2\n"
        )
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        job = [str(ROOT / "jobs" / "replicate.py"), "--config", str(config), "--once"]
        ended = subprocess.run(
            [BIN / "spark-submit", "--master", master, *options, *job],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert "applied: docs version 1: round 0 -> 1, 100 inserted" in ended.stdout
    workers = {Path(line.split()[0]).parents[1].name for line in started.read_text().splitlines()}
    assert workers == {"worker-1", "worker-2"}
