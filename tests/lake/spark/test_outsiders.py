"""Nobody gets a secret of a run without logging in, and nothing listens where strangers can come.

The attack is tried first on a session as Spark has them by default, with a secret in a task: there
it must succeed, or it proves nothing.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.serializers import CloudPickleSerializer

from dcp.lake.change_log.stop_points import VARIABLE
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.receive.task_receiver import receive_function
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.spark.java import find_java_home
from dcp.lake.verify.stream import metadata_access, read_function
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.outsider import (
    Loot,
    addresses_of_machine,
    is_open,
    listeners_of,
    plunder,
    processes_of,
    unix_sockets_of,
)
from tests.lake.receiving import settings_for
from tests.lake.secret_search import is_in
from tests.quick_spark import QUICK_CONF, QUICK_JAVA_OPTIONS, spark_conf_toml

ROOT = Path(__file__).parents[3]
SECONDS = 300.0
PASSWORD = "Pa55-of-the-bucket/qkzwvjx+Y"
S3_SECRET = "S3cret=of:the #store\\mnbvcxz"
PYTHON = sys.executable
SPARK_SUBMIT = str(Path(sys.executable).with_name("spark-submit"))
SPARKS_DEFAULTS = (
    "spark.authenticate=false",
    "spark.network.crypto.enabled=false",
    "spark.driver.bindAddress=0.0.0.0",
)


class Attacked:
    """A program of ours with Spark; its and its children's command lines are read all the time."""

    def __init__(self, words: Sequence[str], folder: Path, **environment: str) -> None:
        self.output = folder / "output.log"
        self.command_lines: set[str] = set()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                words,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(folder / "temporary")} | environment,
            )
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read_command_lines)
        self._reader.start()

    def _read_command_lines(self) -> None:
        while not self._ended.wait(0.02):
            with contextlib.suppress(psutil.Error):
                for each in processes_of(self.process.pid):
                    with contextlib.suppress(psutil.Error):
                        self.command_lines.add("\n".join(each.cmdline()))

    def wait_for(self, file: Path) -> None:
        end = time.monotonic() + SECONDS
        while not file.exists():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < end, f"waited {SECONDS} s for {file}"
            time.sleep(0.05)

    def plundered(self) -> Loot:
        """Attack every port."""
        loot = Loot()
        for listener in listeners_of(processes_of(self.process.pid)):
            each = plunder(listener.reachable_at, listener.port)
            loot.received += each.received
            loot.blocks += each.blocks
        return loot

    def open_from_elsewhere(self) -> list[str]:
        """Return what listens, or answers, where not only this machine can come."""
        listeners = listeners_of(processes_of(self.process.pid))
        assert listeners, "found no port at all, expected those of Spark"
        return [str(each) for each in listeners if not each.is_loopback] + [
            f"{address}:{each.port}"
            for each in listeners
            for address in addresses_of_machine()
            if is_open(address, each.port)
        ]

    def end(self) -> None:
        self._ended.set()
        self._reader.join(SECONDS)
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in reversed(processes_of(self.process.pid)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait(SECONDS)


@contextlib.contextmanager
def attacked(words: Sequence[str], folder: Path, **environment: str) -> Iterator[Attacked]:
    (folder / "temporary").mkdir()
    program = Attacked(words, folder, **environment)
    try:
        yield program
    finally:
        program.end()


def temporary_java(folder: Path) -> dict[str, str]:
    """Return the settings with which all that Spark writes is in ``folder``."""
    options = "spark.driver.extraJavaOptions"
    java = f"{QUICK_CONF[options]} -Djava.io.tmpdir={folder / 'temporary'}"
    return {options: java, "spark.local.dir": str(folder / "temporary")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "conf"),
    [(PYTHON, SPARKS_DEFAULTS), (PYTHON, ()), (SPARK_SUBMIT, ())],
    ids=["spark's defaults", "ours", "ours under spark-submit"],
)
def test_a_secret_in_a_task_is_served_by_spark_unless_we_guard_it(
    tmp_path: Path, start: str, conf: tuple[str, ...]
) -> None:
    """Nothing of ours has one there; a function of the user's may."""
    (tmp_path / "secret").write_text(PASSWORD)
    # spark-submit's JVM runs before our program can set any option of it.
    options = f"spark.driver.extraJavaOptions={QUICK_JAVA_OPTIONS}"
    submitted = ("--conf", options) if start == SPARK_SUBMIT else ()
    program_file = str(ROOT / "tests" / "lake" / "held_task.py")
    words = [start, *submitted, program_file, str(tmp_path), *conf]
    environment = {
        "PYTHONPATH": str(ROOT),
        "JAVA_HOME": str(find_java_home()),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with attacked(words, tmp_path, **environment) as program:
        program.wait_for(tmp_path / "holding")
        loot = program.plundered()
        elsewhere = program.open_from_elsewhere()
    print(f"{loot.blocks} blocks, {len(loot.received)} answers, open from elsewhere: {elsewhere}")
    is_found = any(is_in(PASSWORD, each) for each in loot.received)
    if conf:
        assert is_found and loot.blocks, "the attack itself does not work"
        assert elsewhere
    else:
        assert not is_found
        assert (loot.blocks, elsewhere) == (0, [])


@pytest.mark.slow
def test_nobody_gets_a_secret_of_a_run(tmp_path: Path) -> None:
    """Not from a port, a command line, an event, a log or a file."""
    paused, config = tmp_path / "paused", tmp_path / "private" / "run.toml"
    config.parent.mkdir()
    users = {"tester": PASSWORD}
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, users=users, seed=3)) as cluster:
        for number in range(200):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
        conf = QUICK_CONF | temporary_java(tmp_path) | {"spark.hadoop.fs.s3a.secret.key": S3_SECRET}
        config.write_text(
            f'[source]\nseeds = {json.dumps(cluster.seeds)}\nusername = "tester"\n'
            f'[lake]\nroot = "{tmp_path / "lake"}"\n[spark]\nmaster = "local[2]"\n'
            + spark_conf_toml(conf)
        )
        words = [sys.executable, "-m", "dcp.cli.main", "run", "--config", str(config)]
        with attacked(
            [*words, "--once", "--json"],
            tmp_path,
            DCPLAKE_PASSWORD=PASSWORD,
            **{VARIABLE: f"round.received=pause@{paused}"},
        ) as program:
            program.wait_for(paused)
            processes = processes_of(program.process.pid)
            assert any("pyspark.daemon" in line for line in program.command_lines)
            loot = program.plundered()
            elsewhere = program.open_from_elsewhere()
            folders = {Path(name).parent for name in unix_sockets_of(processes)}
            open_folders = [each for each in folders if each.stat().st_mode & 0o077]
            in_files = secrets_in_files(tmp_path, config)
            paused.unlink()
            assert program.process.wait(SECONDS) == 0, program.output.read_text()
    assert len(program.command_lines) > 3, "found too few processes to prove anything"
    told = [*loot.received, *(line.encode() for line in program.command_lines)]
    found = [each for each in told if is_in(PASSWORD, each) or is_in(S3_SECRET, each)]
    print(f"{loot.blocks} blocks, {len(loot.received)} answers, open from elsewhere: {elsewhere}")
    assert found == []
    assert (loot.blocks, elsewhere) == (0, [])
    assert folders and not open_folders, "others may enter where a worker's socket is"
    assert in_files == secrets_in_files(tmp_path, config) == []


def secrets_in_files(folder: Path, besides: Path) -> list[str]:
    """Return the files below a folder that have one of the secrets in them."""
    found = []
    for parent, _, names in os.walk(folder):  # Spark removes some meanwhile
        for file in (Path(parent, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                data = b"" if file == besides or not file.is_file() else file.read_bytes()
                if is_in(PASSWORD, data) or is_in(S3_SECRET, data):
                    found.append(str(file))
    return found


def test_functions_that_go_to_tasks_have_no_password(tmp_path: Path) -> None:
    users = {"Administrator": PASSWORD}
    with ProducerCluster(ClusterSettings(vbuckets=2, users=users, seed=3)) as cluster:
        cluster.set(b"key", b"1")
        settings = settings_for(cluster, tmp_path)
        Path(settings.source.password_file).write_text(PASSWORD)
        access = source_access(settings)
        probed = query_cluster(access)  # signs in: what a password is derived to is known by now
    plan = plan_round(LakeState("lake", 0), probed, settings.round, settings.flow_control, 1)
    assert isinstance(plan, RoundPlan)
    functions: list[Any] = [
        receive_function(plan, access),
        read_function("lake", plan.tasks, metadata_access(access)),
    ]
    for function in functions:
        data = CloudPickleSerializer().dumps(function)  # type: ignore[no-untyped-call]  # PySpark's
        assert not is_in(PASSWORD, data)
        assert settings.source.password_file.encode() in data, "found no way to the password"


@pytest.mark.parametrize("neighbours", [b"", b"x", b"xy", b"xyz"])
def test_the_search_finds_a_secret_in_any_dress(neighbours: bytes) -> None:
    """Or the absence of one would prove nothing."""
    import base64
    import gzip
    import zlib

    import pyarrow as pa

    plain = neighbours + PASSWORD.encode() + neighbours
    packed = pa.compress(plain, "lz4_raw", asbytes=True)
    sizes = len(packed).to_bytes(4, "little") + len(plain).to_bytes(4, "little")
    dresses = [
        plain,
        plain.hex().encode(),
        base64.b64encode(plain),
        (neighbours.decode() + PASSWORD).encode("utf-16"),
        b"before" + zlib.compress(plain),
        b"before" + gzip.compress(plain),
        b"before" + pa.compress(plain, "zstd", asbytes=True),
        b"before" + b"LZ4Block" + b"\x25" + sizes + b"\0\0\0\0" + packed,
    ]
    for dress in dresses:
        assert is_in(PASSWORD, dress), dress
    assert not is_in(PASSWORD, b"".join(dresses).replace(b"P", b"p")[:40])
