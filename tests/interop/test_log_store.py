"""The jar of dcplake's Java classes is what their source says."""

import subprocess
from pathlib import Path

import pytest

from dcp.lake.spark.jars import LOG_STORE_JAR

pytestmark = pytest.mark.interop


@pytest.mark.timeout(600)
def test_the_jar_is_what_maven_builds_of_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c" / "d"  # the build's folder is beside the first of these
    (folder / "src" / "dcplake").mkdir(parents=True)
    for name in ("pom.xml", "src/dcplake/Credentials.java", "src/dcplake/S3LogStore.java"):
        (folder / name).write_bytes((LOG_STORE_JAR.parent / name).read_bytes())
    words = ["mvn", "--quiet", "--batch-mode", "--file", str(folder / "pom.xml"), "package"]
    subprocess.run(words, check=True, timeout=500)
    built = tmp_path / "build" / "log-store" / LOG_STORE_JAR.name
    assert built.read_bytes() == LOG_STORE_JAR.read_bytes(), "run `make log-store`, and commit it"
