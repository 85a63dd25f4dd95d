"""All jobs on a Spark cluster of some processes, which have of dcplake what is shipped alone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark
import pytest

from dcp.cli.main import main as dcplake
from dcp.lake.spark.java import find_java_home
from dcp.lake.spark.session_settings import python_of_tasks
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake import job_series
from tests.lake.job_series import JOBS, commands_for, ended_jobs
from tests.lake.spark_processes import (
    BIN,
    ON_LOOPBACK,
    SECONDS,
    activated_environment,
    options_of,
    spark_process,
)
from tests.quick_spark import QUICK_JAVA_OPTIONS, QUICK_SQL_CONF

HOST: Final = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


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


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Run a master and two workers of one core each; give the master's address.

    A worker has Spark and Java, and nothing else of this installation.
    """
    bare = ON_LOOPBACK | {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": str(find_java_home()),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    name = "org.apache.spark.deploy"
    with ExitStack() as stack:

        def start(log: str, ready: str, *words: str) -> str:
            process = spark_process(
                folder / log, ready, "spark-class", *words, *HOST, environment=bare
            )
            return stack.enter_context(process)[0]

        master = start("master.log", r"spark://127\.0\.0\.1:\d+", f"{name}.master.Master")
        for number in (1, 2):
            place = ("--work-dir", str(folder / f"worker-{number}"))
            size = ("--cores", "1", "--memory", "600m")
            words = (f"{name}.worker.Worker", *size, *place, master)
            start(f"worker-{number}.log", "Successfully registered", *words)
        yield master


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_jobs_run_on_two_workers_that_have_the_packaged_environment_alone(
    tmp_path: Path,
) -> None:
    """In the Python that the user names."""
    archive, theirs = tmp_path / "env.tar.gz", tmp_path / "their-python"
    assert dcplake(["package", str(archive)]) == 0
    started = tmp_path / "started"
    theirs.write_text(f'#!/bin/sh\npwd >>{started}\nexec ./environment/bin/python "$@"\n')
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
        ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, replicas=1, seed=3)) as cluster,
        standalone_cluster(tmp_path) as master,
    ):
        for number in range(100):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
        cluster.wait_until_replicated()
        config = tmp_path / "run.toml"
        config.write_text(
            f'[source]\nseeds = {json.dumps(cluster.seeds)}\nusername = "Administrator"\n'
            f'password_file = "{tmp_path / "password"}"\n[lake]\nroot = "{tmp_path / "lake"}"\n'
            "[round]\ntasks = 2\nquiet_seconds = 1\n"
        )

        jobs = commands_for(config)
        words = ["--master", master, "--archives", f"{archive}#environment", *options_of(conf)]
        ended = subprocess.run(
            [BIN / "spark-submit", *words, job_series.__file__, *jobs],
            cwd=tmp_path,
            env=activated_environment(),
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
            check=False,
        )
    told = ended.stdout + ended.stderr
    assert ended.returncode == 0, told
    assert ended_jobs(ended.stdout) == dict.fromkeys(JOBS, 0), told
    assert "applied: docs version 1: round 0 -> 2, 100 inserted, 0 updated, 0 deleted" in told
    assert "done, 100 documents" in told and "4 vbuckets compared" in told
    workers = {Path(line).parents[1].name for line in started.read_text().splitlines()}
    assert workers == {"worker-1", "worker-2"}
