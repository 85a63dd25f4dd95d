"""The DAG: it imports, it is built as documented, and it is executed on real documents."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import FencedError, IncompleteRunError, QualityError, SourceError
from dcp.producer.model.versions import Content, Version
from dcp.producer.server.cluster import ProducerCluster
from dcp.wire.vocabulary import Datatype
from tests.airflow.conftest import DAGS, PASSWORD, ROOT, Airflow
from tests.lake.versions import table_at

# Making Airflow's environment takes minutes on the first run.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DAG_RUN_SECONDS = 600

DESCRIBE = """
import json, sys, airflow
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
dag = bag.dags["dcplake"]
policy = dag.get_task("replicate").retry_policy
decide = lambda text: policy.evaluate(Exception(text), 1, 3).action.value
print("RESULT" + json.dumps({
    "airflow": airflow.__file__,
    "errors": bag.import_errors,
    "dags": sorted(bag.dags),
    "catchup": dag.catchup,
    "max_active_runs": dag.max_active_runs,
    "downstream": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
    "arguments": {task.task_id: task.application_args for task in dag.tasks},
    "applications": {task.task_id: task.application for task in dag.tasks},
    "retries": {task.task_id: task.retries for task in dag.tasks},
    "seconds": {task.task_id: task.execution_timeout.total_seconds() for task in dag.tasks},
    "decisions": {code: decide(f"Cannot execute: x. Error code is: {code}.") for code in range(12)},
    "other": decide("worker lost"),
}))
"""


@pytest.fixture(scope="module")
def described(airflow: Airflow) -> dict[str, Any]:
    told = airflow.run(
        "python",
        "-c",
        DESCRIBE,
        str(DAGS),
        DCPLAKE_DAG_CONFIG="/etc/dcplake.toml",
        DCPLAKE_DAG_TABLES="docs, docs__shop__orders__8",
        DCPLAKE_DAG_RETRIES="4",
        DCPLAKE_DAG_TIMEOUT_MINUTES="5",
    ).stdout
    found = re.search(r"^RESULT(.*)$", told, re.MULTILINE)
    assert found, told
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_dag_imports_without_error(described: dict[str, Any]) -> None:
    assert described["errors"] == {}
    assert described["dags"] == ["dcplake"]
    assert "site-packages" in described["airflow"], "the folder airflow/ shadows Airflow"


def test_dag_is_two_command_lines(described: dict[str, Any]) -> None:
    assert described["downstream"] == {"replicate": ["quality"], "quality": []}
    assert described["applications"] == {
        "replicate": str(ROOT / "jobs" / "replicate.py"),
        "quality": str(ROOT / "jobs" / "quality.py"),
    }
    assert described["arguments"] == {
        "replicate": ["--config", "/etc/dcplake.toml", "--once"],
        "quality": [
            "--config",
            "/etc/dcplake.toml",
            "--table=docs",
            "--table=docs__shop__orders__8",
        ],
    }
    assert (described["catchup"], described["max_active_runs"]) == (False, 1)
    assert set(described["retries"].values()) == {4}
    assert set(described["seconds"].values()) == {300}


def test_only_failures_that_a_retry_can_help_are_retried(described: dict[str, Any]) -> None:
    decided = {int(code): action for code, action in described["decisions"].items()}
    assert decided[FencedError.exit_code] == decided[QualityError.exit_code] == "fail"
    assert decided[SourceError.exit_code] == decided[IncompleteRunError.exit_code] == "default"
    assert {code for code, action in decided.items() if action == "fail"} == {2, 3, 6, 7, 8, 9}
    assert described["other"] == "default"


def test_every_variable_of_the_dag_is_documented() -> None:
    used = set(re.findall(r"DCPLAKE_DAG_\w+", (DAGS / "dcplake.py").read_text("utf-8")))
    told = set(re.findall(r"DCPLAKE_DAG_\w+", (ROOT / "conf" / "airflow.env").read_text("utf-8")))
    assert used
    assert used == told


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


def execute(airflow: Airflow, config: Path) -> tuple[int, str]:
    ended = airflow.run(
        "airflow",
        "dags",
        "test",
        "dcplake",
        timeout_seconds=DAG_RUN_SECONDS,
        DCPLAKE_DAG_CONFIG=str(config),
        DCPLAKE_DAG_RETRIES="0",
    )
    return ended.returncode, ended.stdout


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


def test_dag_replicates_and_checks_and_fails_for_a_violation(
    airflow: Airflow, cluster: ProducerCluster, config: Path, tmp_path: Path
) -> None:
    """Executed twice: the second run replicates as well, and its check finds a broken document."""
    for number in range(500):
        cluster.set(b"airport_%d" % number, b'{"runways": %d}' % number)
    code, output = execute(airflow, config)
    assert code == 0, output
    assert "expectations of suite 'replica' hold" in output
    assert rows_of(tmp_path / "lake") == documents_of(cluster)

    cluster.set(b"airport_7", b'{"runways": "closed"}')
    cluster.delete(b"airport_8")
    claim_json(cluster, b"broken", b'{"runways": ')
    code, output = execute(airflow, config)
    assert rows_of(tmp_path / "lake") == documents_of(cluster)
    assert code != 0
    assert f"Error code is: {QualityError.exit_code}." in output
    assert "document_parses: 1 row against" in output
    assert 'key="broken"' in output
    assert "exit code 8: the tables break the data-quality suite" in output
    assert PASSWORD not in output
