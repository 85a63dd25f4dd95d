"""The scheduled run: bring the bucket's changes into the tables, then check the tables.

Two ``spark-submit`` command lines and nothing of dcplake's code: Airflow lives in an environment of
its own. What can be set, and what it means: ``conf/airflow.env``. How to schedule: docs/airflow.md.
"""

import os
import re
from datetime import datetime, timedelta
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, RetryDecision, RetryPolicy

HOME = Path(os.environ.get("DCPLAKE_DAG_HOME") or Path(__file__).resolve().parents[2])
VENV = Path(os.environ.get("DCPLAKE_DAG_VENV") or HOME / ".venv")
CONFIG = os.environ.get("DCPLAKE_DAG_CONFIG") or str(HOME / "conf" / "dcplake.toml")
TABLES = (os.environ.get("DCPLAKE_DAG_TABLES") or "docs").split(",")
SCHEDULE = os.environ.get("DCPLAKE_DAG_SCHEDULE", "@hourly") or None
RETRIES = int(os.environ.get("DCPLAKE_DAG_RETRIES") or 2)
RETRY_SECONDS = float(os.environ.get("DCPLAKE_DAG_RETRY_SECONDS") or 60)
TIMEOUT_MINUTES = float(os.environ.get("DCPLAKE_DAG_TIMEOUT_MINUTES") or 120)
PROPERTIES = os.environ.get("DCPLAKE_DAG_PROPERTIES") or str(HOME / "conf" / "spark-defaults.conf")
DRIVER_MEMORY = os.environ.get("DCPLAKE_DAG_DRIVER_MEMORY") or "2g"
LOGGING = HOME / "conf" / "log4j2.properties"
CONNECTION = os.environ.get("DCPLAKE_DAG_CONNECTION") or "dcplake_spark"

# Trying again changes nothing about these (docs/operations.md lists all codes). After a lost race
# (6) another driver is at work, and a second attempt would race with it again.
FINAL_EXIT_CODES = {
    2: "the configuration is wrong",
    3: "the machine that runs the job lacks something",
    6: "another driver writes to the same lake",
    7: "the tables are not as the log says",
    8: "the tables break the data-quality suite",
    9: "a server broke the protocol",
}


class ExitCodePolicy(RetryPolicy):
    """Gives up at once where the job's exit code says that a retry cannot help."""

    def evaluate(self, exception, try_number, max_tries, context=None) -> RetryDecision:
        """Decide by the exit code in spark-submit's error; without one, as Airflow would."""
        found = re.search(r"Error code is: (\d+)", str(exception))
        reason = FINAL_EXIT_CODES.get(int(found[1])) if found else None
        if reason is None:
            return RetryDecision.default()
        return RetryDecision.fail(f"exit code {found[1]}: {reason}")


def job_environment() -> dict[str, str]:
    """What spark-submit needs to find the job's Python, Spark and Java instead of Airflow's."""
    environment = {
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYSPARK_PYTHON": str(VENV / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": str(VENV / "bin" / "python"),
    }
    packaged_java = VENV / "share" / "dcplake" / "java"
    if "JAVA_HOME" not in os.environ and packaged_java.is_dir():
        environment["JAVA_HOME"] = str(packaged_java)
    return environment


def submit(task_id: str, job: str, *arguments: str) -> SparkSubmitOperator:
    """One job of ``jobs/`` as a task."""
    return SparkSubmitOperator(
        task_id=task_id,
        name=f"dcplake {task_id}",
        application=str(HOME / "jobs" / job),
        application_args=["--config", CONFIG, *arguments],
        conn_id=CONNECTION,
        properties_file=PROPERTIES,
        conf={"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"},
        driver_memory=DRIVER_MEMORY,
        env_vars=job_environment(),
        retry_policy=ExitCodePolicy(),
    )


with DAG(
    "dcplake",
    description="Replicate a Couchbase bucket into Delta tables, then check them",
    schedule=SCHEDULE,
    start_date=datetime(2026, 1, 1),  # noqa: DTZ001  (Airflow reads it in its own time zone)
    catchup=False,  # a run brings everything up to now; there is nothing to make up for
    max_active_runs=1,  # two at once would be fenced: one of them would fail
    default_args={
        "retries": RETRIES,
        "retry_delay": timedelta(seconds=RETRY_SECONDS),
        "execution_timeout": timedelta(minutes=TIMEOUT_MINUTES),
    },
    tags=["dcplake"],
    doc_md=__doc__,
):
    replicate = submit("replicate", "replicate.py", "--once")
    quality = submit("quality", "quality.py", *(f"--table={table.strip()}" for table in TABLES))
    replicate >> quality
