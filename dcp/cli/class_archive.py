"""Makes the archive of loaded classes with which JVMs of this installation start.

    python -m dcp.cli.class_archive

`make setup` runs it; it takes half a minute. What it is for: ``dcp/lake/spark/jvm_options.py``.
"""

import secrets
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Final

from dcp.cli.terminal.output import say
from dcp.lake.config.settings import LakeSettings, Settings, SourceSettings, SparkSettings
from dcp.lake.run.replicate import run
from dcp.lake.spark.jvm_options import class_archive_path
from dcp.lake.spark.session_settings import JAVA_OPTIONS
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings

_USER: Final = "archiver"
_WRITING_SECONDS: Final = 900.0
"""More than a JVM takes at its end to write it, on a machine that does other things meanwhile."""


def make_class_archive(archive: Path) -> bool:
    """Replicate once, in a JVM that archives its classes at its end; return whether it could.

    Not every Java can.

    Raises:
        SetupError: Spark did not start.

    """
    archive.unlink(missing_ok=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        _replicate(Path(folder), {JAVA_OPTIONS: shlex.quote(f"-XX:ArchiveClassesAtExit={made}")})
        if made.exists():
            made.replace(archive)
    return archive.exists()


def _replicate(folder: Path, conf: dict[str, str]) -> None:
    from pyspark import SparkContext

    password = secrets.token_hex(16)
    (folder / "password").write_text(password)
    producer = ClusterSettings(nodes=1, vbuckets=2, users={_USER: password})
    with ProducerCluster(producer) as cluster:
        for number in range(20):
            cluster.set(b"key-%d" % number, b"1")
        source = SourceSettings(
            seeds=tuple(cluster.seeds), username=_USER, password_file=str(folder / "password")
        )
        lake = LakeSettings(root=str(folder / "lake"))
        run(Settings(source=source, lake=lake, spark=SparkSettings(conf=conf)), once=True)
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    assert context is not None and gateway is not None
    context.stop()
    gateway.proc.stdin.close()  # this ends the JVM
    gateway.proc.wait(_WRITING_SECONDS)


if __name__ == "__main__":
    if make_class_archive(class_archive_path()):
        say(f"classes of Spark in {class_archive_path()}")
    else:
        sys.exit("this Java archives no classes")
