"""The DAGs of a lake: replication, applies, checks and maintenance on schedules, the rest by hand.

Command lines and nothing of dcplake's code: Airflow lives in an environment of its own. What can be
set, and what it means: ``conf/airflow.env``. How to run them: docs/howto/airflow.md.
"""

import json
import os
import re
import shlex
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Asset, AssetAlias, Param, RetryDecision, RetryPolicy, task
from airflow.sdk.module_loading import import_string

HOME = Path(os.environ.get("DCPLAKE_DAG_HOME") or Path(__file__).resolve().parents[2])
VENV = Path(os.environ.get("DCPLAKE_DAG_VENV") or HOME / ".venv")
CONFIG = os.environ.get("DCPLAKE_DAG_CONFIG") or str(HOME / "conf" / "dcplake.toml")
TABLES = (os.environ.get("DCPLAKE_DAG_TABLES") or "docs").replace(",", " ").split()
SCHEDULE = os.environ.get("DCPLAKE_DAG_SCHEDULE", "@hourly") or None
APPLY_SCHEDULE = os.environ.get("DCPLAKE_DAG_SCHEDULE_APPLY") or None
NIGHTLY_SCHEDULE = os.environ.get("DCPLAKE_DAG_SCHEDULE_NIGHTLY", "@daily") or None
MAINTAIN_SCHEDULE = os.environ.get("DCPLAKE_DAG_SCHEDULE_MAINTAIN", "@daily") or None
POOL = os.environ.get("DCPLAKE_DAG_POOL") or "dcplake"
RETRIES = int(os.environ.get("DCPLAKE_DAG_RETRIES") or 2)
RETRY_SECONDS = float(os.environ.get("DCPLAKE_DAG_RETRY_SECONDS") or 60)
TIMEOUT_MINUTES = float(os.environ.get("DCPLAKE_DAG_TIMEOUT_MINUTES") or 120)
PROPERTIES = os.environ.get("DCPLAKE_DAG_PROPERTIES") or str(HOME / "conf" / "spark-defaults.conf")
DRIVER_MEMORY = os.environ.get("DCPLAKE_DAG_DRIVER_MEMORY") or "2g"
LOGGING = HOME / "conf" / "log4j2.properties"
CLASSES = VENV / "share" / "dcplake" / "spark-classes.jsa"
CONNECTION = os.environ.get("DCPLAKE_DAG_CONNECTION") or "dcplake_spark"
CALLBACKS = {
    "on_failure_callback": os.environ.get("DCPLAKE_DAG_ON_FAILURE"),
    "on_retry_callback": os.environ.get("DCPLAKE_DAG_ON_RETRY"),
    "on_success_callback": os.environ.get("DCPLAKE_DAG_ON_SUCCESS"),
}

# Trying again changes nothing about these (docs/reference/exit-codes.md lists all codes). After a
# lost race (6) another driver is at work, and a second attempt would race with it again. 3 is not
# among them: an object store that did not answer has the same code as a machine without Java.
FINAL_EXIT_CODES = {
    2: "the configuration is wrong",
    6: "another driver writes to the same lake",
    7: "the tables are not as the log says",
    8: "rows break the data-quality suite, or a value cannot be parsed",
    9: "a server broke the protocol",
    10: "a table differs from the bucket",
    130: "the lake is paused, or the job was asked to stop",
}


class ExitCodePolicy(RetryPolicy):
    """Gives up at once where the job's exit code says that a retry cannot help."""

    def evaluate(self, exception, try_number, max_tries, context=None) -> RetryDecision:
        """Decide by the exit code in the error; without one, as Airflow would."""
        found = re.search(r"(?:Error code is:|exit status) (\d+)", str(exception))
        reason = FINAL_EXIT_CODES.get(int(found[1])) if found else None
        if reason is None:
            return RetryDecision.default()
        return RetryDecision.fail(f"exit code {found[1]}: {reason}")


def job_environment() -> dict[str, str]:
    """What a job needs to find its own Python, Spark and Java instead of Airflow's."""
    environment = {
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYSPARK_PYTHON": str(VENV / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": str(VENV / "bin" / "python"),
    }
    packaged_java = VENV / "share" / "dcplake" / "java"
    if "JAVA_HOME" not in os.environ and packaged_java.is_dir():
        environment["JAVA_HOME"] = str(packaged_java)
    return environment


def java_options() -> str:
    """Options of a job's JVM: where it logs, and the archive of Spark's classes, if it is made."""
    options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    if CLASSES.exists():
        options.append(f"-XX:SharedArchiveFile={CLASSES}")
    return shlex.join(options)


def add_params(context) -> None:
    """Give the job the parameters of its run that are set, as options of the same names."""
    context["task"].application_args += [
        f"--{name.replace('_', '-')}={value}"
        for name, value in context["params"].items()
        if value is not None
    ]


def submit(task_id: str, *arguments: str, **options) -> SparkSubmitOperator:
    """The job of ``jobs/`` with this name, as a task; ``options`` are the operator's."""
    return SparkSubmitOperator(
        task_id=task_id,
        name=f"dcplake {task_id}",
        application=str(HOME / "jobs" / f"{task_id}.py"),
        application_args=["--config", CONFIG, *arguments],
        conn_id=CONNECTION,
        properties_file=PROPERTIES,
        conf={"spark.driver.extraJavaOptions": java_options()},
        driver_memory=DRIVER_MEMORY,
        env_vars=job_environment(),
        **options,
    )


def quality(*arguments: str) -> SparkSubmitOperator:
    """The checks of the tables, as a task."""
    return submit("quality", *(f"--table={table}" for table in TABLES), *arguments)


ASSETS = {table: Asset(f"dcplake.{table}") for table in TABLES}
NEW_VERSIONS = AssetAlias("dcplake")


@task(inlets=list(ASSETS.values()), outlets=[NEW_VERSIONS])
def announce(*, inlet_events, outlet_events) -> None:
    """Updates the assets of the tables that hold another round than when they were updated last.

    So a version is announced by whichever task comes next, also where the one that made it died.
    """
    told = subprocess.run(
        [VENV / "bin" / "dcplake", "status", "--config", CONFIG, "--json"],
        env=os.environ | job_environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    status = json.loads(told.stdout)
    for found in status["replicas"]:
        if (asset := ASSETS.get(found["table"])) is None:
            continue
        last = list(inlet_events[asset].ascending(False).limit(1))
        state = {"lake": status["lake"], "round": found["round"]}
        if not last or not state.items() <= last[0].extra.items():
            outlet_events[NEW_VERSIONS].add(asset, extra=state | {"version": found["version"]})


def lake_dag(
    dag_id: str,
    description: str,
    schedule: str | None = None,
    params: dict[str, Param] | None = None,
) -> DAG:
    """A DAG whose tasks have the lake for themselves: they share a pool of one slot."""
    return DAG(
        dag_id,
        description=description,
        schedule=schedule,
        start_date=datetime(2026, 1, 1),  # noqa: DTZ001  (Airflow reads it in its own time zone)
        catchup=False,  # a run brings everything up to now; there is nothing to make up for
        max_active_runs=1,
        params=params,
        default_args={
            "pool": POOL,
            "retries": RETRIES,
            "retry_delay": timedelta(seconds=RETRY_SECONDS),
            "retry_policy": ExitCodePolicy(),
            "execution_timeout": timedelta(minutes=TIMEOUT_MINUTES),
            **{event: import_string(name) for event, name in CALLBACKS.items() if name},
        },
        tags=["dcplake"],
        doc_md=__doc__,
    )


VBUCKETS = Param(
    None,
    type=["null", "string"],
    pattern=r"^\d+(-\d+)?(,\s*\d+(-\d+)?)*$",
    description="Which vbuckets, as in 0-63,70; all of them where this is empty.",
)

with lake_dag("dcplake", "Replicate a bucket into Delta tables, then check them", SCHEDULE):
    if APPLY_SCHEDULE:
        submit("replicate", "--once", "--set", "apply.when=never")
    else:
        submit("replicate", "--once") >> [announce(), quality()]

with lake_dag("dcplake_apply", "Merge what was received into the tables", APPLY_SCHEDULE):
    submit("apply") >> [announce(), quality()]

with lake_dag("dcplake_nightly", "Check all rows, and compare with the bucket", NIGHTLY_SCHEDULE):
    quality("--whole-table")
    submit("verify")

with lake_dag("dcplake_maintain", "Keep the lake small", MAINTAIN_SCHEDULE):
    submit("maintain")

BACKFILL_PARAMS = {
    "vbuckets": VBUCKETS,
    "from": Param(
        "replicas",
        enum=["replicas", "settings"],
        description="Read replica vbuckets, or what source.seeds names: a relay, for instance.",
    ),
    "megabytes_per_second": Param(
        None,
        type=["null", "number"],
        minimum=0.01,
        description="The most that all tasks together read; no limit where this is empty.",
    ),
}
with lake_dag("dcplake_backfill", "Build tables from replica vbuckets", params=BACKFILL_PARAMS):
    submit("backfill", pre_execute=add_params) >> [announce(), quality()]

RESYNC_PARAMS = {"vbuckets": VBUCKETS}
with lake_dag("dcplake_resync", "Let the next run stream vbuckets anew", params=RESYNC_PARAMS):
    submit("resync", pre_execute=add_params)
