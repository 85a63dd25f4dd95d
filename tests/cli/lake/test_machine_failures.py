"""The machine fails under a run: its JVM is killed, a disk is full, a folder cannot be written.

Each is one line that says what to do, and an exit code; the next run goes on, and nothing is lost.
The runs are processes of their own with a JVM each; disks are small file systems in memory where
we may mount one, else files of the process may not grow.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.errors import DcplakeError, SetupError
from dcp.lake.change_log.stop_points import VARIABLE
from dcp.lake.run.replicate import run
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import SMALL_FLOW, lake_of, settings_for
from tests.lake.replicas import source_rows, table_rows
from tests.quick_spark import QUICK_CONF, spark_conf_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

VBUCKETS = 2
PROCESS_SECONDS = 600.0


class World:
    """A bucket, and the command that replicates it."""

    def __init__(self, cluster: ProducerCluster, folder: Path, spark: "SparkSession") -> None:
        self.cluster, self.folder, self._spark = cluster, folder, spark
        self.root = folder / "lake"
        self._settings = settings = settings_for(cluster, folder)
        self._words = [
            *(sys.executable, "-m", "dcp.cli.main", "run", "--once"),
            *("--config", str(folder / "run.toml")),
            *("--set", f"source.seeds={','.join(cluster.seeds)}"),
            *("--set", f"source.username={settings.source.username}"),
            *("--set", f"source.password_file={settings.source.password_file}"),
            *("--set", f"flow_control.window_bytes={SMALL_FLOW['window_bytes']}"),
            *("--set", f"flow_control.batch_bytes={SMALL_FLOW['batch_bytes']}"),
            *("--set", "spark.master=local[2]"),
        ]

    def write(self, first: int, count: int) -> None:
        with self.cluster.batch():
            for number in range(first, first + count):
                self.cluster.set(b"key-%d" % number, os.urandom(100).hex().encode())

    def start(
        self,
        *,
        root: Path | None = None,
        before: Callable[[], None] | None = None,
        environment: dict[str, str] | None = None,
        **conf: str,
    ) -> "subprocess.Popen[str]":
        settings = QUICK_CONF | {name.replace("_", "."): value for name, value in conf.items()}
        (self.folder / "run.toml").write_text(spark_conf_toml(settings))
        return subprocess.Popen(
            [*self._words, "--set", f"lake.root={root or self.root}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
            preexec_fn=before,  # noqa: PLW1509  (no thread of ours holds a lock that it needs)
        )

    def require_exact(self, root: Path | None = None) -> None:
        """Go on in this process, whose disks have room; the bucket is what the table then holds."""
        settings = replace(
            self._settings, lake=replace(self._settings.lake, root=str(root or self.root))
        )
        run(settings, once=True, spark=self._spark)
        lake = lake_of(settings, self._spark)
        highs = {vb: self.cluster.high_seqno(vb) for vb in range(VBUCKETS)}
        assert table_rows(lake, None) == source_rows(self.cluster, highs)


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Return the exit code of a run and what it said of a failure."""
    try:
        _, said = process.communicate(timeout=PROCESS_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return process.returncode, said


def require_line(process: "subprocess.Popen[str]", code: int, *told: str) -> None:
    """Require that a run ends with this code, and with one line that tells this."""
    found, said = ended(process)
    assert (found, said.count("\n")) == (code, 1), f"{found}\n{said}"
    assert said.startswith("dcplake run: ")
    assert all(each in said for each in told), said


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession") -> Iterator[World]:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=3)) as cluster:
        yield World(cluster, tmp_path, spark)


def wait_for(process: "subprocess.Popen[str]", file: Path) -> None:
    """Wait until a run has made ``file``."""
    end = time.monotonic() + PROCESS_SECONDS
    while not file.exists():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < end, f"waited {PROCESS_SECONDS} s for {file}"
        time.sleep(0.05)


def jvm_of(process: "subprocess.Popen[str]") -> int:
    """Return the process id of a run's JVM."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (found,) = (
        int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "java\n"
    )
    return found


def test_the_jvm_is_killed_in_a_round(world: World) -> None:
    """A worker that streams is paused when the first is: the append of the round is under way."""
    world.write(0, 200)
    waits = world.folder / "waits"
    process = world.start(environment={VARIABLE: f"round.received=pause@{waits}"})
    wait_for(process, waits)
    os.kill(jvm_of(process), signal.SIGKILL)
    waits.unlink()
    require_line(
        process,
        DcplakeError.exit_code,
        "Spark's JVM has ended (killed by SIGKILL)",
        "run again, nothing that is committed is lost",
    )
    world.require_exact()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """A file system of so many bytes at ``folder``; False where this machine mounts none for us."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def files_grow_to(most_bytes: int) -> Callable[[], None]:
    """Return what lets no file of a process grow any more, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


FULL = ("a disk is full; make room", "nothing that is committed is lost")


def test_the_disk_of_the_lake_is_full(world: World) -> None:
    """First in the round that does not fit, then in none: there is room again."""
    disk = world.folder / "disk"
    with small_disk(disk, "100k") as mounted:
        root = disk / "lake"
        world.write(0, 600)
        process = world.start(root=root, before=None if mounted else files_grow_to(30_000))
        require_line(process, SetupError.exit_code, *FULL)
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        world.require_exact(root)


def test_the_disk_of_the_temporary_files_is_full(world: World) -> None:
    """Before Spark has started, and under an apply, which joins."""
    world.write(0, 200)
    disk = world.folder / "disk"
    with small_disk(disk, "1m") as mounted:
        before = None if mounted else files_grow_to(30_000)
        process = world.start(before=before, spark_local_dir=str(disk))
        require_line(process, SetupError.exit_code, *FULL)
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
            world.require_exact()
            world.write(100, 200)
            waits = world.folder / "waits"
            process = world.start(
                spark_local_dir=str(disk),
                spark_sql_autoBroadcastJoinThreshold="-1",  # so that the MERGE shuffles
                environment={VARIABLE: f"apply.planned=pause@{waits}"},
            )
            wait_for(process, waits)
            with contextlib.suppress(OSError), (disk / "full").open("wb", buffering=0) as full:
                while True:
                    full.write(b"x" * 65536)
            waits.unlink()
            require_line(process, SetupError.exit_code, *FULL)
    world.require_exact()
