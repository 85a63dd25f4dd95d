"""The DAGs: they import, they are built as documented, and their command lines are understood."""

import json
import re
import runpy
import shlex
from typing import Any

import pytest

from dcp.errors import (
    ConfigError,
    FencedError,
    IncompleteRunError,
    QualityError,
    SourceError,
    StoreUnavailableError,
)
from dcp.lake.config.settings_load import load_settings
from dcp.lake.spark.jvm_options import class_archive_path
from tests.airflow.conftest import DAGS, ROOT, Airflow

# Making Airflow's environment takes minutes on the first run.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DESCRIBE = """
import copy, json, os, sys
import airflow
from airflow.dag_processing.dagbag import DagBag

def described(dag):
    return {
        "schedule": dag.schedule,
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "tasks": {task.task_id: described_task(task) for task in dag.tasks},
    }

def described_task(task):
    return {
        "downstream": sorted(task.downstream_task_ids),
        "pool": task.pool,
        "retries": task.retries,
        "seconds": task.execution_timeout.total_seconds(),
        "application": getattr(task, "application", None),
        "arguments": getattr(task, "application_args", None),
        "takes_params": task._pre_execute_hook is not None,
        "conf": getattr(task, "conf", None),
        "assets": [each.name for each in (*task.inlets, *task.outlets)],
        "on_failure": [f"{each.__module__}.{each.__name__}" for each in task.on_failure_callback],
    }

def described_bag():
    bag = DagBag(sys.argv[1])
    assert not bag.import_errors, bag.import_errors
    return bag, {name: described(dag) for name, dag in bag.dags.items()}

def options(dag_id, **given):
    dag = bag.dags[dag_id]
    [task] = [task for task in dag.tasks if task.task_id in ("backfill", "resync")]
    params = copy.copy(dag.params)
    try:
        params.update(given)
    except Exception as error:
        return type(error).__name__
    task.application_args = []
    task._pre_execute_hook({"task": task, "params": params.dump()})
    return task.application_args

sys.path.append(os.environ["AIRFLOW_HOME"] + "/plugins")
bag, dags = described_bag()
policy = bag.dags["dcplake"].get_task("replicate").retry_policy
decide = lambda text: policy.evaluate(Exception(text), 1, 3).action.value
told = {
    "airflow": airflow.__file__,
    "dags": dags,
    "decisions": {
        code: decide(f"Cannot execute: x. Error code is: {code}.")
        for code in (*range(12), 130, 143)
    },
    "status": decide("Command '['dcplake', 'status']' returned non-zero exit status 7."),
    "other": decide("worker lost"),
    "backfill": [options("dcplake_backfill", **given) for given in json.loads(sys.argv[2])],
    "resync": options("dcplake_resync", vbuckets="0-63, 70"),
}
os.environ["DCPLAKE_DAG_SCHEDULE_APPLY"] = "@daily"
told["applied apart"] = described_bag()[1]
print("RESULT" + json.dumps(told))
"""
GIVEN: list[dict[str, Any]] = [
    {},
    {"vbuckets": "7", "from": "settings", "megabytes_per_second": 20},
    {"vbuckets": "all"},
    {"vbuckets": "1-2; rm -rf /"},
    {"from": "nowhere"},
    {"megabytes_per_second": 0},
    {"megabytes_per_second": "20"},
]


@pytest.fixture(scope="module")
def described(airflow: Airflow) -> dict[str, Any]:
    told = airflow.run(
        "python",
        "-c",
        DESCRIBE,
        str(DAGS),
        json.dumps(GIVEN),
        DCPLAKE_DAG_CONFIG="/etc/missing.toml",
        DCPLAKE_DAG_TABLES="docs, docs__shop__orders__8",
        DCPLAKE_DAG_RETRIES="4",
        DCPLAKE_DAG_TIMEOUT_MINUTES="5",
        DCPLAKE_DAG_ON_FAILURE="notify.record",
    ).stdout
    found = re.search(r"^RESULT(.*)$", told, re.MULTILINE)
    assert found, told
    content: dict[str, Any] = json.loads(found[1])
    return content


def test_dags_are_built_as_documented(described: dict[str, Any]) -> None:
    assert "site-packages" in described["airflow"], "the folder airflow/ shadows Airflow"
    dags = described["dags"]
    checked: dict[str, list[str]] = {"announce": [], "quality": []}
    after = sorted(checked)
    assert {
        name: (dag["schedule"], {task: each["downstream"] for task, each in dag["tasks"].items()})
        for name, dag in dags.items()
    } == {
        "dcplake": ("@hourly", {"replicate": after} | checked),
        "dcplake_apply": (None, {"apply": after} | checked),
        "dcplake_nightly": ("@daily", {"quality": [], "verify": []}),
        "dcplake_maintain": ("@daily", {"maintain": []}),
        "dcplake_backfill": (None, {"backfill": after} | checked),
        "dcplake_resync": (None, {"resync": []}),
    }
    assert {(dag["catchup"], dag["max_active_runs"]) for dag in dags.values()} == {(False, 1)}
    tasks = [each for dag in dags.values() for each in dag["tasks"].values()]
    common = {(t["pool"], t["retries"], t["seconds"], *t["on_failure"]) for t in tasks}
    assert common == {("dcplake", 4, 300, "notify.record")}, "one slot for all of them"
    assert dags["dcplake"]["tasks"]["announce"]["assets"] == [
        "dcplake.docs",
        "dcplake.docs__shop__orders__8",
        "dcplake",
    ]


def test_applies_may_have_a_cadence_of_their_own(described: dict[str, Any]) -> None:
    dags = described["applied apart"]
    [replicate] = dags["dcplake"]["tasks"].values()
    assert replicate["arguments"][-3:] == ["--once", "--set", "apply.when=never"]
    assert dags["dcplake_apply"]["schedule"] == "@daily"
    assert set(dags["dcplake_apply"]["tasks"]) == {"apply", "announce", "quality"}


def test_params_are_checked_and_become_options(described: dict[str, Any]) -> None:
    takers = [
        (dag_id, task_id)
        for dag_id, dag in described["dags"].items()
        for task_id, task in dag["tasks"].items()
        if task["takes_params"]
    ]
    assert sorted(takers) == [("dcplake_backfill", "backfill"), ("dcplake_resync", "resync")]
    refused = "ParamValidationError"
    assert described["backfill"] == [
        ["--from=replicas"],
        ["--vbuckets=7", "--from=settings", "--megabytes-per-second=20"],
        *[refused] * 5,
    ]
    assert described["resync"] == ["--vbuckets=0-63, 70"]


def test_jobs_understand_their_command_lines(
    described: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all that is wrong with them, the file of settings that is not there is told."""
    by_task = {
        (task, *each["arguments"]): each["application"]
        for variant in ("dags", "applied apart")
        for dag in described[variant].values()
        for task, each in dag["tasks"].items()
        if task != "announce"
    }
    by_param = {
        ("backfill", "--config=/etc/missing.toml", *described["backfill"][1]): None,
        ("resync", "--config=/etc/missing.toml", *described["resync"]): None,
    }
    for (task, *arguments), application in (by_task | by_param).items():
        job = str(ROOT / "jobs" / f"{task}.py")
        assert application in (None, job)
        monkeypatch.setattr("sys.argv", [job, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(job, run_name="__main__")
        assert ended.value.code == ConfigError.exit_code
        assert "/etc/missing.toml" in capsys.readouterr().err, arguments
    assert {task for task, *_ in by_task} == {each.stem for each in (ROOT / "jobs").glob("*.py")}


def test_jobs_start_with_the_archive_of_classes_if_there_is_one(described: dict[str, Any]) -> None:
    archive = class_archive_path()
    conf = described["dags"]["dcplake"]["tasks"]["replicate"]["conf"]
    options = shlex.split(conf["spark.driver.extraJavaOptions"])
    assert (f"-XX:SharedArchiveFile={archive}" in options) == archive.exists()


def test_only_failures_that_a_retry_can_help_are_retried(described: dict[str, Any]) -> None:
    decided = {int(code): action for code, action in described["decisions"].items()}
    assert decided[FencedError.exit_code] == decided[QualityError.exit_code] == "fail"
    retried = (SourceError, IncompleteRunError, StoreUnavailableError)
    assert {decided[each.exit_code] for each in retried} == {"default"}
    assert {code for code, action in decided.items() if action == "fail"} == {
        *(2, 6, 7, 8, 9, 10),
        130,
    }
    assert (described["status"], described["other"]) == ("fail", "default")


def test_every_variable_of_the_dags_is_documented() -> None:
    used = set(re.findall(r"DCPLAKE_DAG_\w+", (DAGS / "dcplake.py").read_text("utf-8")))
    told = set(re.findall(r"DCPLAKE_DAG_\w+", (ROOT / "conf" / "airflow.env").read_text("utf-8")))
    assert used
    assert used == told
    load_settings(environment=dict.fromkeys(used, "x"))  # the jobs inherit them
