"""Containers, cron and other countries: a run works, or one line says what to do."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dcp.errors import ConfigError, SetupError
from dcp.lake.spark import jvm_environment, leftovers
from dcp.lake.spark.failures import start_cause
from dcp.lake.spark.jvm_environment import (
    driver_java_options,
    environment,
    jvm_variables,
    refuse_language,
)
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import settings_for
from tests.quick_spark import QUICK_CONF, spark_conf_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EGYPT: Final = "-Duser.language=ar -Duser.country=EG -Dfile.encoding=ISO-8859-1"
DEFAULT_IS_HDFS: Final = """\
<configuration><property>
<name>fs.defaultFS</name><value>hdfs://nowhere.invalid:8020</value>
</property></configuration>
"""
DOCUMENTS: Final = 9

NO_HOST: Final = """\
WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
Caused by: java.net.UnknownHostException: box-7: box-7: Name or service not known
\tat java.base/java.net.InetAddress.getLocalHost(InetAddress.java:1671)
Caused by: java.net.UnknownHostException: box-7: Name or service not known
\tat java.base/java.net.Inet6AddressImpl.lookupAllHostAddr(Native Method)
"""
NO_USER: Final = """\
Exception in thread "main" org.apache.hadoop.security.KerberosAuthException: failure to login
Caused by: java.lang.NullPointerException: invalid null input: name
"""
NO_EXEC: Final = (
    "java.lang.UnsatisfiedLinkError: /tmp/libzstd-jni.so: /tmp/libzstd-jni.so: "
    "failed to map segment from shared object\n"
)
NO_LOCAL_DIR: Final = (
    "2026-11-27T11:54:36.531Z ERROR DiskBlockManager: Failed to create local dir in /spill. "
    "Ignoring this directory.\n"
)


@pytest.mark.slow
def test_a_run_under_everything_that_machines_and_countries_do_differently(tmp_path: Path) -> None:
    """Other digits and charsets, a machine without a name, other Sparks, other file systems."""
    here, hadoop = tmp_path / "grüße 1", tmp_path / "hadoop"
    (here / "dcp").mkdir(parents=True)
    (here / "dcp" / "__init__.py").write_text("raise ImportError('another package')")
    hadoop.mkdir()
    (hadoop / "core-site.xml").write_text(DEFAULT_IS_HDFS)
    (here / "job.toml").write_text(
        '[spark]\nmaster = "local[1]"\n'
        + spark_conf_toml(QUICK_CONF | {"spark.sql.warehouse.dir": "file:/tmp/dcplake-none"})
    )
    nameless = ["unshare", "--uts", "sh", "-c", 'hostname nowhere-42 && exec "$@"', "sh"]
    can_rename = subprocess.run([*nameless, "true"], capture_output=True, check=False)
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=2, seed=3)) as cluster:
        for number in range(DOCUMENTS):
            cluster.set(b"key-%d" % number, b"1")
        settings = settings_for(cluster, tmp_path)
        values = {
            "source.seeds": ",".join(cluster.seeds),
            "source.username": settings.source.username,
            "source.password_file": settings.source.password_file,
            "lake.root": "lake",
        }
        ended = subprocess.run(
            [
                *(nameless if can_rename.returncode == 0 else ()),
                Path(sys.executable).parent / "dcplake",
                *("run", "--once", "--config", "job.toml"),
                *(word for name, value in values.items() for word in ("--set", f"{name}={value}")),
            ],
            cwd=here,
            env=os.environ
            | {
                "LC_ALL": "C",
                "TZ": "Asia/Kolkata",
                "TMPDIR": str(here),
                "HOME": "/nonexistent",
                "JAVA_TOOL_OPTIONS": EGYPT,
                "_JAVA_OPTIONS": EGYPT,
                "SPARK_HOME": "/nonexistent/spark-3.5",
                "SPARK_REMOTE": "sc://nowhere.invalid",
                "HADOOP_CONF_DIR": str(hadoop),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        here.name,
        hadoop.name,
    ]
    left = {path.name for path in here.iterdir()}
    assert left >= {"dcp", "lake"}
    assert not {"?", "~"} & left
    commits = sorted(path.name for path in (here / "lake/docs/_delta_log").glob("*.json"))
    assert commits == [f"{number:020d}.json" for number in range(len(commits))]
    table = QueryBuilder().register("docs", DeltaTable(here / "lake" / "docs"))
    found = pa.RecordBatchReader.from_stream(table.execute("SELECT key FROM docs")).read_all()
    assert found.num_rows == DOCUMENTS


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (NO_HOST, "box-7: this machine's own name does not resolve; add the name to /etc/hosts"),
        (NO_USER, "the system has no name for this user, and Java needs one; give the user a line"),
        (NO_EXEC, "/tmp/libzstd-jni.so: Java cannot load its native library from there"),
        (NO_LOCAL_DIR, "/spill: Spark cannot make a folder for its temporary files there"),
        (
            "Picked up JAVA_TOOL_OPTIONS: -Xms9g\nError occurred during initialization of VM\n"
            "Initial heap size set to a larger value than the maximum heap size\n",
            "Initial heap size set to a larger value than the maximum heap size",
        ),
        (
            "Error opening zip file or JAR manifest missing : /gone.jar\n"
            "Error occurred during initialization of VM\nagent library failed to init\n",
            "Error opening zip file or JAR manifest missing : /gone.jar",
        ),
        (
            'Exception in thread "main" java.lang.IllegalArgumentException: first\n\tat a.b\n'
            "Caused by: java.lang.IllegalStateException: the cause\n\tat c.d\n",
            "java.lang.IllegalStateException: the cause",
        ),
        ("", "its JVM ended, and printed nothing"),
    ],
)
def test_the_cause_that_a_jvm_printed_is_told(tmp_path: Path, printed: str, told: str) -> None:
    log = tmp_path / "spark.log"
    log.write_text(printed)
    failure = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending")
    found = start_cause(failure, log)
    assert found.startswith(told)
    assert "\n" not in found


def test_spark_is_that_of_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark-3.5")
    assert str(jvm_variables("local[1]")["SPARK_HOME"]).endswith("/pyspark")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(jvm_environment, "find_java_home", lambda: tmp_path)
    assert "SPARK_HOME" not in jvm_variables("local[1]"), "a Spark installed by itself"


def test_only_a_local_session_does_without_the_name_of_the_machine() -> None:
    assert jvm_variables("local[*]")["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in jvm_variables("spark://host:7077")


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCPLAKE_A", "old")
    monkeypatch.delenv("DCPLAKE_B", raising=False)
    with environment({"DCPLAKE_A": None, "DCPLAKE_B": "new"}):
        assert "DCPLAKE_A" not in os.environ
        assert os.environ["DCPLAKE_B"] == "new"
    assert os.environ["DCPLAKE_A"] == "old"
    assert "DCPLAKE_B" not in os.environ


def properties() -> dict[str, str]:
    """The properties that a JVM of this machine gets."""
    words = (word.removeprefix("-D") for word in shlex.split(driver_java_options()))
    return dict(word.split("=", 1) for word in words)


def test_java_has_the_folders_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = properties()
    assert (found["user.home"], found["java.io.tmpdir"]) == (str(tmp_path), str(tmp_path))
    assert not found.keys() & {"ivy.home", "ZstdTempFolder"}


def test_java_has_folders_where_the_user_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No home, and temporary files on a file system that is mounted noexec."""
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(leftovers, "_has_programs", lambda place: place != tmp_path)
    found = properties()
    assert Path(found["user.home"]).parent == tmp_path
    assert Path(found["user.home"]).stat().st_mode & 0o777 == 0o700
    assert found["java.io.tmpdir"] == str(tmp_path)
    assert Path(found["ZstdTempFolder"]).parent != tmp_path
    monkeypatch.setattr(leftovers, "_has_programs", lambda _: False)
    with pytest.raises(SetupError, match=r"expected a folder that is not mounted noexec.* TMPDIR"):
        driver_java_options()


@pytest.mark.parametrize("is_deep", [True, False])
def test_sockets_are_in_a_folder_with_a_short_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_deep: bool
) -> None:
    deep = tmp_path / ("deep" * 10)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setattr(leftovers, "_FOLDERS", ("/nonexistent", str(tmp_path)))
    monkeypatch.setattr(leftovers, "_SHORT_BYTES", len(str(tmp_path)) if is_deep else 1000)
    assert leftovers.sockets_folder().parent == (tmp_path if is_deep else deep)
    monkeypatch.setattr(leftovers, "_SHORT_BYTES", 1)
    with pytest.raises(SetupError, match=r"found /.*, expected a folder with a name of at most 1 "):
        leftovers.sockets_folder()


def test_a_machine_without_a_folder_for_temporary_files_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(SetupError, match=r"No usable .* found in .*; .* name it in TMPDIR"):
        leftovers.temporary_folder()


def test_a_session_of_others_with_other_digits_is_refused(spark: "SparkSession") -> None:
    jvm: Any = spark.sparkContext._jvm
    locales = jvm.java.util.Locale
    refuse_language(spark, spark.sparkContext._jvm, Path("/a/grüße"))
    locales.setDefault(locales.forLanguageTag("ar-EG"))
    try:
        with pytest.raises(ConfigError, match=r"DecimalStyle\[٠.* -Duser\.language=en"):
            refuse_language(spark, spark.sparkContext._jvm, None)
    finally:
        locales.setDefault(locales.US)


def test_a_session_of_others_that_cannot_name_the_folder_is_refused(spark: "SparkSession") -> None:
    system: Any = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    system.setProperty("sun.jnu.encoding", "ANSI_X3.4-1968")
    try:
        refuse_language(spark, spark.sparkContext._jvm, Path("/a/greetings"))
        with pytest.raises(ConfigError, match=r"/a/grüße: .* ANSI_X3\.4-1968, .* LC_ALL=C\.UTF-8"):
            refuse_language(spark, spark.sparkContext._jvm, Path("/a/grüße"))
    finally:
        system.setProperty("sun.jnu.encoding", "UTF-8")
