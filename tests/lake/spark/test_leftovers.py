"""A session leaves nothing behind, unless there is something to read or to keep."""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dcp.errors import SetupError
from dcp.lake.spark import leftovers, session, session_settings
from dcp.lake.spark.java import find_java_home
from tests.quick_spark import QUICK_JAVA_OPTIONS

USUAL = """\
WARNING: Using incubator modules: jdk.incubator.vector
2026-11-21T17:22:09.890 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1
2026-11-21T17:22:09.902 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
2026-11-21T17:22:11.350 WARN NativeCodeLoader: Unable to load native-hadoop library
2026-11-21T17:22:39.275 WARN SparkStringUtils: Truncated the string representation of a plan
Traceback (most recent call last):
  File "/python/lib/pyspark.zip/pyspark/daemon.py", line 262, in manager
  File "/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe
"""

JVM_SECONDS = 60.0

PROGRAM = """\
import sys
import tempfile
from dcp.lake.spark.session import build_session
spark = build_session(master="local[1]", driver_memory="1g")
spark.sql("SHOW TABLES").collect()
print(spark.conf.get("spark.python.unix.domain.socket.dir"))
if sys.argv[1:]:
    spark.sql("CREATE TABLE kept USING parquet AS SELECT 1 AS one")
"""


SUBMITTED = """\
import os
from dcp.lake.spark.session import build_session
def noisy(batches):
    os.write(2, b"Traceback of a worker")
    yield from batches
spark = build_session()
print(spark.range(3).mapInArrow(noisy, "id BIGINT").count())
"""


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        (None, False),
        ("", False),
        (USUAL, False),
        (USUAL + "2026-11-21T17:22:40.000 ERROR Executor: Exception in task 0.0\n", True),
    ],
)
def test_a_log_stays_only_where_it_says_something(
    tmp_path: Path, log: str | None, kept: bool
) -> None:
    folder = tmp_path / "dcplake-x"
    folder.mkdir()
    spark_log = folder / "spark.log"
    (folder / "spark.log.log4j2.properties").write_text("status = error")
    if log is not None:
        spark_log.write_text(log)
    leftovers._remove_spark_log(spark_log, os.getpid() + 1)
    assert folder.exists(), "a forked process removes nothing"
    leftovers._remove_spark_log(spark_log, os.getpid())
    assert folder.exists() == kept
    assert spark_log.exists() == kept


def test_a_log_that_was_rolled_stays_too(tmp_path: Path) -> None:
    spark_log = tmp_path / "dcplake-x" / "spark.log"
    spark_log.parent.mkdir()
    spark_log.touch()
    spark_log.with_name("spark.log.1").write_text(" ERROR Executor: Exception in task 0.0\n")
    leftovers._remove_spark_log(spark_log, os.getpid())
    assert spark_log.exists()


def test_the_log_of_a_failed_start_stays_since_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[object] = []

    def fail(_settings: object, spark_log: Path) -> None:
        raise SetupError(f"its log is {spark_log}")

    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session, "_start_jvm", fail)
    monkeypatch.setattr(session_settings, "sockets_folder", lambda: tmp_path)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.setattr(atexit, "unregister", removed.append)
    with pytest.raises(SetupError, match="its log is"):
        session._start("name", None, "1g", None, {}, on_s3=False)
    assert removed == [leftovers._remove_spark_log]


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["table"]])
def test_a_session_leaves_only_what_was_asked_for(tmp_path: Path, words: list[str]) -> None:
    here, temporary = tmp_path / "my projects", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=here,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=300,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert not Path(ended.stdout.strip()).exists(), "the sockets have a folder of their own"
    assert [log.read_text() for log in temporary.glob("*/spark.log")] == []
    end = time.monotonic() + JVM_SECONDS
    while list(temporary.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(temporary.iterdir()) == [], "the JVM ends after Python, and removes its own"
    assert [str(path.relative_to(here)) for path in here.rglob("kept")] == [
        "spark-warehouse/kept" for _ in words
    ]
    assert (here / "spark-warehouse").exists() == bool(words), "a catalog's tables stay"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my projects", "temporary"]


@pytest.mark.slow
def test_what_workers_print_is_not_the_users_under_spark_submit(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SUBMITTED)
    (tmp_path / "temporary").mkdir()
    log4j = Path(__file__).parents[3] / "conf" / "log4j2.properties"
    options = f"{QUICK_JAVA_OPTIONS} -Dlog4j2.configurationFile={log4j.as_uri()}"
    conf = ("--master", "local[1]", "--conf", f"spark.driver.extraJavaOptions={options}")
    binaries = Path(sys.executable).parent
    ended = subprocess.run(
        [binaries / "spark-submit", *conf, "job.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java_home()),
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "TMPDIR": str(tmp_path / "temporary"),
        },
        timeout=300,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "3\n"
    assert ended.stderr == "WARNING: Using incubator modules: jdk.incubator.vector\n"
    assert list((tmp_path / "temporary").glob("dcplake-*")) == []
