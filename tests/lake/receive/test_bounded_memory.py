"""Bounded memory: one snapshot (2 GiB at scale 1) with 20 MiB documents through a small window.

The producer is a process of its own and not counted. What runs is ``jobs/replicate.py --once``,
with all its processes; their resident memory (PSS) is sampled every 0.2 s and compared with the
formula of docs/reference/memory.md, as ``dcp/lake/config/memory.py`` computes it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.memory import (
    DOCUMENT_BYTES,
    MEBIBYTE,
    least_heap_bytes,
    parse_memory,
    reader_settings,
    worker_bytes,
)
from dcp.lake.config.settings import LakeSettings, RoundSettings, Settings, SourceSettings
from dcp.lake.query.views import register_views
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.receive.task_receiver import TaskReceiver
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.store.location import LakeLocation
from dcp.lake.tables.lake_tables import open_lake
from dcp.lake.tables.schema import RowKind, is_kind
from tests.lake.memory_bound import memory_bound
from tests.lake.memory_source import PASSWORD, USER
from tests.lake.process_memory import MemorySampler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[3]
SCALE: Final = float(os.environ.get("DCPLAKE_TEST_SCALE", "0.05"))
"""Part of 2 GiB; all of it takes minutes, which is for `make soak`."""
SEED: Final = int(os.environ.get("DCPLAKE_TEST_SEED", "4"))
BACKFILL_BYTES: Final = int(2 * 1024 * MEBIBYTE * SCALE)
LARGE_BYTES: Final = DOCUMENT_BYTES
MESSAGE_BYTES: Final = DOCUMENT_BYTES + 1024
"""With header, extras and key, which are no part of the limit."""
WINDOW_BYTES: Final = 10 * MEBIBYTE
BATCH_BYTES: Final = 4 * MEBIBYTE
TASKS: Final = 2
STOPPED_SECONDS: Final = 15
WORKER_FIXED_BYTES: Final = worker_bytes(0, 0, 0) - 2 * DOCUMENT_BYTES
RUN_SECONDS: Final = 1500 * max(1.0, SCALE)


class Source:
    """The producer's process."""

    def __init__(self, total_bytes: int, idle_seconds: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.lake.memory_source"]
            + [str(number) for number in (total_bytes, LARGE_BYTES, SEED, idle_seconds)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ready = self._line()
        self.seeds = tuple(ready["seeds"])
        self.documents: int = ready["documents"]

    def counters(self) -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told


@contextmanager
def source_of(total_bytes: int, idle_seconds: int = 360) -> Iterator[Source]:
    source = Source(total_bytes, idle_seconds)
    try:
        yield source
    finally:
        with source.process:  # closes its pipes, which ends it, and waits
            pass


def settings_of(source: Source, folder: Path) -> Settings:
    (folder / "password").write_text(PASSWORD)
    return Settings(
        source=SourceSettings(
            seeds=source.seeds, username=USER, password_file=str(folder / "password")
        ),
        flow_control=FlowControlSettings(window_bytes=WINDOW_BYTES, batch_bytes=BATCH_BYTES),
        round=RoundSettings(target_bytes=2**45, target_seconds=RUN_SECONDS),
        lake=LakeSettings(root=str(folder / "lake")),
    )


@contextmanager
def job(settings: Settings, driver_memory: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, str(ROOT / "jobs" / "replicate.py"), "--once"]
    for name, value in {
        "source.seeds": ",".join(settings.source.seeds),
        "source.username": settings.source.username,
        "source.password_file": settings.source.password_file,
        "flow_control.window_bytes": settings.flow_control.window_bytes,
        "flow_control.batch_bytes": settings.flow_control.batch_bytes,
        "round.target_bytes": settings.round.target_bytes,
        "round.target_seconds": settings.round.target_seconds,
        "lake.root": settings.lake.root,
        "spark.master": f"local[{TASKS}]",
        "spark.driver_memory": driver_memory,
    }.items():
        words += ["--set", f"{name}={value}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        try:
            yield process
        finally:
            _end_tree(process.pid)
            process.wait(30)


def _end_tree(pid: int) -> None:
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            process.kill()
    except psutil.NoSuchProcess:
        pass


@pytest.mark.slow
@pytest.mark.timeout(int(RUN_SECONDS) + 300)
def test_a_large_backfill_keeps_to_the_formula(tmp_path: Path, spark: "SparkSession") -> None:
    driver_memory = f"{-(-least_heap_bytes(TASKS) // MEBIBYTE)}m"  # the least that is accepted
    bound = memory_bound(
        tasks=TASKS,
        connections=1,
        window_bytes=WINDOW_BYTES,
        batch_bytes=BATCH_BYTES,
        heap_bytes=parse_memory(driver_memory),
    )
    with source_of(BACKFILL_BYTES) as source:
        settings = settings_of(source, tmp_path)
        log = tmp_path / "job.log"
        with job(settings, driver_memory, log) as process, MemorySampler(process.pid) as memory:
            code = process.wait(RUN_SECONDS)
        counters = source.counters()
    print(
        f"{source.documents:,} documents, peak {_mib(memory.peak_bytes)} of "
        f"{_mib(bound.total_bytes)} MiB, by kind {_in_mib(memory.at_peak)}, "
        f"largest process of each kind {_in_mib(memory.peaks)}, "
        f"worker's bound {_mib(bound.worker_bytes)} MiB, {memory.samples} samples"
    )
    assert code == 0, log.read_text()[-3000:]
    assert memory.samples > 10
    assert memory.peak_bytes <= bound.total_bytes
    assert memory.peaks["worker"] <= bound.worker_bytes
    assert memory.peaks["jvm"] <= bound.jvm_bytes
    assert memory.peaks["driver"] <= bound.driver_bytes
    assert counters["streams_opened"] == 1  # nothing was sent twice
    assert counters["items_sent"] == source.documents
    assert counters["peak_unacked_bytes"] <= WINDOW_BYTES + MESSAGE_BYTES
    _require_survival(spark, settings, source.documents)


def _mib(size: int) -> int:
    return size // MEBIBYTE


def _in_mib(sizes: dict[str, int]) -> dict[str, int]:
    return {kind: _mib(size) for kind, size in sizes.items()}


def _require_survival(spark: "SparkSession", settings: Settings, documents: int) -> None:
    """Every document is in the log, the replica and the views; a large one is no VARIANT."""
    lake = open_lake(SparkStore(lambda: spark, LakeLocation(root=settings.lake.root)))
    register_views(lake)
    large = f"octet_length(value) > {MEBIBYTE}"
    before = {key: spark.conf.get(key, None) for key in reader_settings(DOCUMENT_BYTES)}
    try:
        for key, value in reader_settings(DOCUMENT_BYTES).items():
            spark.conf.set(key, value)
        mutations = f"(SELECT * FROM {lake.changes_sql} WHERE {is_kind(RowKind.MUTATION)})"
        for table in (mutations, lake.table_sql("docs"), "docs_live"):
            rows, keys = spark.sql(f"SELECT count(*), count(DISTINCT key) FROM {table}").collect()[
                0
            ]
            assert (rows, keys) == (documents, documents), table
        for table in (mutations, lake.table_sql("docs")):
            query = f"SELECT DISTINCT octet_length(value) AS bytes FROM {table} WHERE {large}"
            found = {row["bytes"] for row in spark.sql(query).collect()}
            assert found == {LARGE_BYTES}, table
        row = spark.sql(
            "SELECT v.document IS NULL AS missing, v.document_null_reason AS reason, "
            "octet_length(d.document) AS bytes "
            "FROM documents_variant v JOIN documents d USING (key) WHERE key = 'large-000'"
        ).collect()[0]
        assert row["bytes"] == LARGE_BYTES
        assert row["missing"]
        assert row["reason"] == "too large"
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def _settled(number: Callable[[], int]) -> int:
    """Return a number of bytes when it has not grown for a second."""
    found = number()
    while True:
        sleep(1.0)
        now = number()
        if now - found < MEBIBYTE:
            return now
        found = now


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sink_that_is_stopped_for_long_stops_the_producer_at_the_window(
    tmp_path: Path,
) -> None:
    """Spark does not ask for the next batch: the node sends no more, and memory stays flat.

    Nobody is taken for dead: the node gives up who is silent for ten seconds, and we who sends
    nothing for two intervals of its NOOPs and a grace. Mostly waiting, hardly any work.
    """
    ours = psutil.Process()
    base_bytes = ours.memory_full_info().uss
    with source_of(280 * MEBIBYTE, idle_seconds=10) as source:
        settings = settings_of(source, tmp_path)
        chosen = replace(settings.source, noop_interval_seconds=1.0)
        settings = replace(settings, source=chosen)
        access = source_access(settings)
        cluster = query_cluster(access)
        plan = plan_round(
            LakeState("0123456789abcdef", 0), cluster, settings.round, settings.flow_control, 1
        )
        assert isinstance(plan, RoundPlan)
        batches = TaskReceiver(plan.tasks[0], 1, plan.budget, access, "stalled-sink").batches()
        rows = sum(next(batches).num_rows for _ in range(5))  # some are taken, then no more
        stopped = _wait_until_silent(source)
        assert 0 < stopped["unacked_bytes"] <= WINDOW_BYTES + MESSAGE_BYTES
        assert stopped["peak_unacked_bytes"] <= WINDOW_BYTES + MESSAGE_BYTES
        resident_bytes = _settled(lambda: ours.memory_full_info().uss)  # the last message is read
        of_data_bytes = worker_bytes(1, WINDOW_BYTES, BATCH_BYTES) - WORKER_FIXED_BYTES
        assert resident_bytes - base_bytes <= of_data_bytes
        now, until = stopped, monotonic() + STOPPED_SECONDS
        while monotonic() < until:
            sleep(1.0)
            now = source.counters()
            assert now["bytes_sent"] == stopped["bytes_sent"]
            assert now["buffer_acks"] == stopped["buffer_acks"]
            assert ours.memory_full_info().uss - resident_bytes < 8 * MEBIBYTE
        assert now["noops_answered"] >= stopped["noops_answered"] + 5, "or we would be cut off"
        for batch in batches:  # the sink goes on: everything still arrives
            rows += batch.num_rows
        told = source.counters()
        assert told["items_sent"] == source.documents
        assert (told["connections_opened"], told["streams_opened"]) == (1, 1), "it never broke"
        assert rows > source.documents


def _wait_until_silent(source: Source) -> dict[str, int]:
    """Return the counters once the window is full and nothing was sent for a second."""
    end = monotonic() + 90
    now = last = source.counters()
    since = monotonic()
    while monotonic() - since < 1.0 or now["unacked_bytes"] < WINDOW_BYTES:
        assert monotonic() < end, f"the producer still sends after 90 s: {now}"
        sleep(0.05)
        now = source.counters()
        if now["bytes_sent"] != last["bytes_sent"]:
            last, since = now, monotonic()
    return now
