"""The way of settings to Spark, and a session's requirements for a password in its settings."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.errors import ConfigError
from dcp.lake.adapters.opening import refuse_open_password
from dcp.lake.config.settings import SourceSettings
from dcp.lake.spark.launch_properties import SUBMIT_ARGUMENTS, launch_properties, properties_text
from dcp.lake.spark.session_settings import guarding_settings
from tests.quick_spark import QUICK_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
ODD = "a=b:c #d !e \\f\tg \u00fc \U0001f511 'h' \"i\" $(j) k"
"""No space at its end: Spark trims what it reads from a file."""

PROGRAM = """\
import json, sys
from dcp.lake.spark.session import build_session
given = json.loads(sys.stdin.read())
spark = build_session(master="local[1]", driver_memory="1g", extra=given)
jvm = spark.sparkContext._jvm
keys = [*given, "spark.of.defaults", "spark.of.arguments", "spark.driver.memory", "spark.master"]
print(json.dumps({key: jvm.java.lang.System.getProperty(key) for key in keys}))
print(jvm.java.lang.Runtime.getRuntime().maxMemory())
"""


def test_the_file_is_ours_alone_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SUBMIT_ARGUMENTS, "--conf a=b pyspark-shell")
    before = os.umask(0)
    try:
        with launch_properties({"spark.a": "secret"}):
            _, name, *rest = os.environ[SUBMIT_ARGUMENTS].split()
            assert rest == ["--load-spark-defaults", "--conf", "a=b", "pyspark-shell"]
            file = Path(name)
            assert stat.filemode(file.stat().st_mode) == "-rw-------"
            assert stat.filemode(file.parent.stat().st_mode) == "drwx------"
            assert file.read_text() == "spark.a=secret\n"
    finally:
        os.umask(before)
    assert not file.parent.exists()
    assert os.environ[SUBMIT_ARGUMENTS] == "--conf a=b pyspark-shell"
    monkeypatch.delenv(SUBMIT_ARGUMENTS)
    with pytest.raises(RuntimeError), launch_properties({}):
        raise RuntimeError
    assert SUBMIT_ARGUMENTS not in os.environ


@pytest.mark.parametrize("form", ["--properties-file x", "--properties-file=x"])
def test_a_second_file_is_refused(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv(SUBMIT_ARGUMENTS, f"{form} pyspark-shell")
    with (
        pytest.raises(ConfigError, match=r"found --properties-file, .* \[spark\.conf\]"),
        launch_properties({}),
    ):
        pytest.fail("one of the two files would be ignored")


def test_text_that_java_reads_as_it_is_meant() -> None:
    assert properties_text({"a.b-c_d": "x/y,z0"}) == "a.b-c_d=x/y,z0\n"
    assert properties_text({"k e=y": " \u00fc\U0001f511"}) == (
        "k\\u0020e\\u003dy=\\u0020\\u00fc\\ud83d\\udd11\n"
    )


@pytest.mark.slow
def test_spark_starts_with_the_settings_of_the_file_and_with_the_users(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.of.defaults  theirs\nspark.odd  never\nspark.driver.memory  3g\n"
    )
    given = QUICK_CONF | {"spark.odd": ODD, "spark.odd key=x": "y", "spark.of.arguments": "never"}
    given |= {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(given),
        cwd=tmp_path,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "SPARK_CONF_DIR": str(tmp_path),
            SUBMIT_ARGUMENTS: "--conf spark.of.arguments=theirs pyspark-shell",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told, heap = ended.stdout.splitlines()
    found = json.loads(told)
    java_options = found.pop("spark.driver.extraJavaOptions")
    assert java_options.endswith(given.pop("spark.driver.extraJavaOptions"))
    assert found == given | {
        "spark.of.defaults": "theirs",
        "spark.of.arguments": "theirs",
        "spark.driver.memory": "1g",
        "spark.master": "local[1,4]",
    }
    assert int(heap) < 1.1 * 2**30


@pytest.mark.parametrize(
    ("master", "is_guarded", "is_local"),
    [
        ("local", True, True),
        ("local[*,4]", True, True),
        ("yarn", True, False),
        ("k8s://https://k:443", True, False),
        ("spark://h:7077", False, False),
    ],
)
def test_which_sessions_are_guarded(master: str, is_guarded: bool, is_local: bool) -> None:
    found = guarding_settings(master)
    assert (found.get("spark.authenticate") == "true") == is_guarded
    assert (found.get("spark.network.crypto.enabled") == "true") == is_guarded
    assert (found.get("spark.driver.host") == "127.0.0.1") == is_local
    assert (found.get("spark.driver.bindAddress") == "127.0.0.1") == is_local


def test_a_password_in_the_settings_of_a_guarded_session_is_not_refused(
    spark: "SparkSession",
) -> None:
    session = spark.newSession()
    session.conf.set("spark.executorEnv.SOME_PASSWORD", "hunter2")
    refuse_open_password(session, SourceSettings(password_env="SOME_PASSWORD"))


@pytest.mark.slow
def test_what_a_session_of_somebody_else_is_told(tmp_path: Path) -> None:
    """One that lets strangers in, and whose tasks do not know the password of the driver."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.lake.foreign_session", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + ended.stdout
    travels, travels_too, missing = (json.loads(line) for line in ended.stdout.splitlines())
    for told in (travels, travels_too):
        assert told["type"] == "ConfigError"
        assert "found the password in spark.executorEnv.OPEN_PASSWORD" in told["message"]
        assert "expected spark.authenticate and spark.network.crypto.enabled" in told["message"]
    assert missing["type"] == "ConfigError"
    assert missing["message"].startswith("a Spark task on ")
    assert "the environment variable LATE_PASSWORD is not set" in missing["message"]
    assert "docs/howto/give-tasks-the-password.md" in missing["message"]
    assert "password of nobody" not in ended.stdout + ended.stderr
