"""Precedence of settings in a session: spark-submit's, the configuration's, dcplake's own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from dcp.lake.spark.jars import LOG_STORE_JAR, delta_jars
from dcp.lake.spark.java import find_java_home
from dcp.lake.spark.session_settings import DELTA_EXTENSION
from tests.quick_spark import QUICK_JAVA_OPTIONS

BIN: Final = Path(sys.executable).parent
PROGRAM: Final = """
import json
import sys
from dcp.lake.spark.session import build_session
spark = build_session(extra=json.loads(sys.argv[1]))
spark.range(1).write.format("delta").save(sys.argv[2])
answers = {key: spark.conf.get(key, None) for key in json.loads(sys.argv[3])}
jars = spark.sparkContext._jsc.sc().listJars().mkString(" ").split()
print(json.dumps(answers | {"jars": jars}))
"""
PARTITIONS: Final = "spark.sql.shuffle.partitions"
SNAPSHOTS: Final = "spark.databricks.delta.snapshotPartitions"
ZONE: Final = "spark.sql.session.timeZone"
EXTENSIONS: Final = "spark.sql.extensions"
CODEC: Final = "spark.sql.parquet.compression.codec"


@pytest.mark.slow
def test_spark_submit_wins_over_the_configuration_and_both_over_dcplake(tmp_path: Path) -> None:
    """But for what rows depend on. Delta that spark-submit brings is used, and no other sought."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    submitted = {
        PARTITIONS: "3",
        ZONE: "Europe/Paris",
        EXTENSIONS: DELTA_EXTENSION,
        "spark.driver.extraJavaOptions": QUICK_JAVA_OPTIONS,
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    jars = ",".join(str(jar) for jar in delta_jars())
    own_jar = tmp_path / "own.jar"
    own_jar.write_bytes(b"PK\x05\x06" + bytes(18))  # an empty one
    extra = {PARTITIONS: "5", SNAPSHOTS: "7", "spark.jars": str(own_jar)}
    options = [word for key, value in submitted.items() for word in ("--conf", f"{key}={value}")]
    words = [
        json.dumps(extra),
        str(tmp_path / "table"),
        json.dumps([PARTITIONS, SNAPSHOTS, ZONE, CODEC, EXTENSIONS]),
    ]
    ended = subprocess.run(
        [BIN / "spark-submit", "--master", "local[1]", "--jars", jars, *options, program, *words],
        cwd=tmp_path,
        env=os.environ
        | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "JAVA_HOME": str(find_java_home()),
            "DCPLAKE_JARS": str(tmp_path / "no" / "jars"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    found_jars = found.pop("jars")
    assert found.pop(EXTENSIONS) == DELTA_EXTENSION, "once"
    assert found == {PARTITIONS: "3", SNAPSHOTS: "7", ZONE: "UTC", CODEC: "zstd"}
    assert any(jar.endswith("/own.jar") for jar in found_jars)
    assert any(jar.endswith(f"/{LOG_STORE_JAR.name}") for jar in found_jars)
    assert len(found_jars) == 2 + len(delta_jars())
    assert not (tmp_path / "no").exists()
