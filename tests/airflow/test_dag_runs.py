"""A scheduler executes a DAG on real documents."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import QualityError
from dcp.lake.change_log.stop_points import VARIABLE
from dcp.producer.cluster import ProducerCluster
from dcp.server.model.versions import Content, Version
from dcp.wire.vocabulary import Datatype
from tests.airflow.conftest import DAGS, PASSWORD, ROOT, Airflow, Api
from tests.lake.versions import table_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


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


def recorded(record: Path) -> list[tuple[str, int, str]]:
    """Return which tries the callbacks heard of: task, number of the try, error."""
    return [tuple(json.loads(line)) for line in record.read_text().splitlines()]


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


def test_scheduler_tries_a_killed_driver_again_triggers_readers_and_finds_a_violation(
    airflow: Airflow, cluster: ProducerCluster, config: Path, tmp_path: Path
) -> None:
    """The DAG file is a copy in a folder of somebody else's DAGs."""
    for number in range(100):
        cluster.set(b"airport_%d" % number, b'{"runways": %d}' % number)
    claim_json(cluster, b"broken", b'{"runways": ')
    dags, logs = tmp_path / "dags", tmp_path / "logs"
    killed, tries, read = tmp_path / "killed", tmp_path / "tries", tmp_path / "read"
    dags.mkdir()
    shutil.copy(DAGS / "dcplake.py", dags)
    (dags / "reader.py").write_text(READER)
    with airflow.scheduled(
        tmp_path / "airflow.log",
        AIRFLOW__CORE__DAGS_FOLDER=str(dags),
        AIRFLOW__LOGGING__BASE_LOG_FOLDER=str(logs),
        DCPLAKE_DAG_HOME=str(ROOT),
        DCPLAKE_DAG_CONFIG=str(config),
        DCPLAKE_DAG_SCHEDULE="@daily",  # no further run begins amid the test
        DCPLAKE_DAG_SCHEDULE_NIGHTLY="",
        DCPLAKE_DAG_SCHEDULE_MAINTAIN="",
        DCPLAKE_DAG_RETRIES="1",
        DCPLAKE_DAG_RETRY_SECONDS="0",
        DCPLAKE_DAG_ON_FAILURE="notify.record",
        DCPLAKE_DAG_ON_RETRY="notify.record",
        READ=str(read),
        RECORD=str(tries),
        **{VARIABLE: f"round.committed=kill@{killed}"},
    ) as api:
        api.wait_for("the pool", lambda: api.ask("pools", {"name": "dcplake", "slots": 1}))
        replicated = api.wait_for("the scheduled run", lambda: ended_run(api, "dcplake"))
        assert tries_of(api, replicated) == {
            "replicate": ("success", 2),
            "announce": ("success", 1),
            "quality": ("failed", 1),
        }, recorded(tries)
        read_by = api.wait_for("the reader's run", lambda: ended_run(api, "reader"))
        again = {"dry_run": False, "only_failed": False, "task_ids": ["announce"]}
        again |= {"dag_run_id": replicated["dag_run_id"]}
        api.ask("dags/dcplake/clearTaskInstances", again)
        looked = ("success", 2)
        api.wait_for("a second look", lambda: tries_of(api, replicated)["announce"] == looked)
        assert api.ask("assets/events")["total_entries"] == 1, "there was no new version"

    assert (replicated["run_type"], replicated["state"]) == ("scheduled", "failed")
    assert rows_of(tmp_path / "lake") == documents_of(cluster)
    changes = table_at(tmp_path / "lake" / "changes")
    assert set(changes.column("round").to_pylist()) == {1}, "the killed one's round is used"
    assert (read_by["run_type"], read_by["state"]) == ("asset_triggered", "success")
    event = json.loads(read.read_text())
    assert (event["version"], event["round"]) == (1, 1)
    [(*first, killed_by), (*last, error)] = recorded(tries)
    assert first == ["replicate", 1] and "Error code is: 137." in killed_by
    assert last == ["quality", 1], "it is not tried again"
    assert f"Error code is: {QualityError.exit_code}." in error
    assert "document_parses: 1 row against" in error
    assert 'key="broken"' in error
    told = [*logs.rglob("*.log"), api.output]
    assert len(told) > 4, "the tasks' logs are elsewhere"
    assert not any(PASSWORD in each.read_text() for each in told)
