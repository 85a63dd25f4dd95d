"""DAGs are executed on real documents: by ``airflow dags test``, and by a scheduler."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dcp.errors import FencedError, QualityError
from dcp.lake.config.settings import ApplySettings
from dcp.lake.config.settings_load import load_settings
from dcp.lake.log.stop_points import FILE_VARIABLE, VARIABLE
from dcp.lake.run.run import run
from dcp.producer.cluster import ProducerCluster
from dcp.server.model.versions import Content, Version
from dcp.wire.vocabulary import Datatype
from tests.airflow.conftest import DAGS, PASSWORD, ROOT, Airflow, Api
from tests.lake.versions import table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

DAG_RUN_SECONDS = 2000


def documents_of(cluster: ProducerCluster) -> dict[str, tuple[int, int, bytes]]:
    """What the producer holds now: key to vbucket, seqno and value."""
    return {
        key.decode(): (vbucket, document.seqno, document.value)
        for vbucket in range(cluster.settings.vbuckets)
        for key, document in cluster.state_at(vbucket, cluster.high_seqno(vbucket)).items()
    }


def rows_of(lake: Path) -> dict[str, tuple[int, int, bytes]]:
    """What the replica holds now."""
    found = table_at(lake / "docs")
    columns = (found.column(name).to_pylist() for name in ("key", "vbucket", "seqno", "value"))
    rows = list(zip(*columns, strict=True))
    assert len({row[0] for row in rows}) == len(rows), "a key twice"
    return {key: (vbucket, int(seqno), value) for key, vbucket, seqno, value in rows}


def execute(airflow: Airflow, dag_id: str, config: Path, **variables: str) -> tuple[int, str]:
    ended = airflow.run(
        "airflow",
        "dags",
        "test",
        dag_id,
        timeout_seconds=DAG_RUN_SECONDS,
        DCPLAKE_DAG_CONFIG=str(config),
        DCPLAKE_DAG_RETRIES="1",
        DCPLAKE_DAG_RETRY_SECONDS="0",
        DCPLAKE_DAG_ON_FAILURE="notify.record",
        DCPLAKE_DAG_ON_RETRY="notify.record",
        DCPLAKE_LAKE_LOCK="false",  # as in a store: only the fence of each commit is there
        **variables,
    )
    assert PASSWORD not in ended.stdout
    return ended.returncode, ended.stdout


def recorded(record: Path) -> list[tuple[str, int, str]]:
    """Return which tries the callbacks heard of: task, number of the try, error."""
    return [tuple(json.loads(line)) for line in record.read_text().splitlines()]


@contextmanager
def hanging(file: Path) -> Iterator[None]:
    """Let the driver that waits for ``file`` to go on wait until the context is left."""
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def test_killed_and_tried_again_then_checked_while_a_zombie_wakes(
    airflow: Airflow, cluster: ProducerCluster, config: Path, tmp_path: Path
) -> None:
    """One run hangs before its round; another run's driver is killed after that round."""
    for number in range(500):
        cluster.set(b"airport_%d" % number, b'{"runways": %d}' % number)
    hangs, killed = tmp_path / "hangs", tmp_path / "killed"
    zombies, tries = tmp_path / "zombies", tmp_path / "tries"
    with ThreadPoolExecutor() as pool, hanging(hangs):
        zombie = pool.submit(
            execute,
            airflow,
            "dcplake",
            config,
            RECORD=str(zombies),
            **{VARIABLE: "round.planned=pause", FILE_VARIABLE: str(hangs)},
        )
        while not hangs.exists():
            assert not zombie.done(), zombie.result()[1]
            time.sleep(0.1)

        code, output = execute(
            airflow,
            "dcplake",
            config,
            RECORD=str(tries),
            **{VARIABLE: "round.committed=kill", FILE_VARIABLE: str(killed)},
        )
        assert code == 0, output
        [(task, number, error)] = recorded(tries)
        assert (task, number) == ("replicate", 1) and "Error code is: 137." in error
        assert "expectations of suite 'replica' hold" in output
        assert rows_of(tmp_path / "lake") == documents_of(cluster)
        changes = table_at(tmp_path / "lake" / "changes")
        assert set(changes.column("round").to_pylist()) == {1}, "the killed one's round is used"
    code, output = zombie.result()
    assert code != 0
    [(task, number, error)] = recorded(zombies)
    assert (task, number) == ("replicate", 1), "it is not tried again"
    assert f"Error code is: {FencedError.exit_code}." in error
    assert "exit code 6: another driver writes to the same lake" in output
    assert table_at(tmp_path / "lake" / "changes").equals(changes)
    assert rows_of(tmp_path / "lake") == documents_of(cluster)


READER = """
import json, os
from airflow.sdk import DAG, Asset, task

DOCS = Asset("dcplake.docs")
with DAG("reader", schedule=[DOCS]):
    @task
    def read(*, triggering_asset_events):
        with open(os.environ["READ"], "a") as file:
            print(json.dumps(triggering_asset_events[DOCS][-1].extra), file=file)
    read()
"""


def claim_json(cluster: ProducerCluster, key: bytes, value: bytes) -> None:
    """Let the server claim that ``value`` is JSON; its own front door would look at it."""
    with cluster.batch():
        vbucket = cluster.bucket.table.of_key(key)
        claimed = Version(
            vbucket.id,
            key,
            Content(value, int(Datatype.JSON)),
            seqno=vbucket.data.high_seqno + 1,
            rev=1,
            cas=vbucket.documents.clock.next(cluster.bucket.now()),
        )
        cluster.take_versions(vbucket.id, [claimed])


def ended_run(api: Api, dag_id: str) -> dict[str, Any] | None:
    """Return the one run of a DAG, when it has ended."""
    for each in api.ask(f"dags/{dag_id}/dagRuns")["dag_runs"]:
        if each["state"] in ("success", "failed"):
            found: dict[str, Any] = each
            return found
    return None


def tries_of(api: Api, run: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the state of each task of a run, and how often it was tried."""
    tasks = api.ask(f"dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances")
    return {
        each["task_id"]: (each["state"], each["try_number"]) for each in tasks["task_instances"]
    }


def test_scheduler_applies_on_its_schedule_triggers_readers_and_finds_a_violation(
    airflow: Airflow,
    cluster: ProducerCluster,
    config: Path,
    tmp_path: Path,
    spark: "SparkSession",
) -> None:
    """The DAG file is a copy in a folder of somebody else's DAGs, and Airflow a new one."""
    for number in range(100):
        cluster.set(b"airport_%d" % number, b'{"runways": %d}' % number)
    claim_json(cluster, b"broken", b'{"runways": ')
    (tmp_path / "password").write_text(PASSWORD)  # Spark's processes have an environment already
    settings = load_settings(config)
    source = replace(settings.source, password_file=str(tmp_path / "password"))
    receiving = replace(settings, source=source, apply=ApplySettings(when="never"))
    run(receiving, once=True, spark=spark)
    assert rows_of(tmp_path / "lake") == {}

    home, dags = tmp_path / "airflow", tmp_path / "dags"
    failures, read = tmp_path / "failures", tmp_path / "read"
    shutil.copytree(Path(airflow.environment["AIRFLOW_HOME"], "plugins"), home / "plugins")
    dags.mkdir()
    shutil.copy(DAGS / "dcplake.py", dags)
    (dags / "reader.py").write_text(READER)
    with airflow.standalone(
        tmp_path / "standalone.log",
        AIRFLOW_HOME=str(home),
        AIRFLOW__CORE__DAGS_FOLDER=str(dags),
        DCPLAKE_DAG_HOME=str(ROOT),
        DCPLAKE_DAG_CONFIG=str(config),
        DCPLAKE_DAG_SCHEDULE="",
        DCPLAKE_DAG_SCHEDULE_APPLY="@hourly",
        DCPLAKE_DAG_SCHEDULE_NIGHTLY="",
        DCPLAKE_DAG_SCHEDULE_MAINTAIN="",
        DCPLAKE_DAG_ON_FAILURE="notify.record",
        READ=str(read),
        RECORD=str(failures),
    ) as api:
        api.wait_for("the pool", lambda: api.ask("pools", {"name": "dcplake", "slots": 1}))
        applied = api.wait_for("the scheduled run", lambda: ended_run(api, "dcplake_apply"))
        tries = tries_of(api, applied)
        assert tries == {
            "apply": ("success", 1),
            "announce": ("success", 1),
            "quality": ("failed", 1),
        }, recorded(failures)
        told = api.wait_for("the reader's run", lambda: ended_run(api, "reader"))
        again = {"dry_run": False, "only_failed": False, "task_ids": ["announce"]}
        again |= {"dag_run_id": applied["dag_run_id"]}
        api.ask("dags/dcplake_apply/clearTaskInstances", again)
        api.wait_for("a second look", lambda: tries_of(api, applied)["announce"] == ("success", 2))
        assert api.ask("assets/events")["total_entries"] == 1, "there was no new version"

    assert (applied["run_type"], applied["state"]) == ("scheduled", "failed")
    assert rows_of(tmp_path / "lake") == documents_of(cluster)
    assert (told["run_type"], told["state"]) == ("asset_triggered", "success")
    event = json.loads(read.read_text())
    assert (event["version"], event["round"]) == (1, 1)
    [(task, number, error)] = recorded(failures)
    assert (task, number) == ("quality", 1), "it is not tried again"
    assert f"Error code is: {QualityError.exit_code}." in error
    assert "document_parses: 1 row against" in error
    assert 'key="broken"' in error
    logs = [*(home / "logs").rglob("*.log"), api.output]
    assert len(logs) > 4, "the tasks' logs are elsewhere"
    assert not any(PASSWORD in log.read_text() for log in logs)
