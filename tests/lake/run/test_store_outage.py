"""An object store that does not answer, or refuses us, in the middle of a run without end: the run
goes on.

Without Spark: rounds are written by this process, as tasks write them, and nothing is applied.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from time import sleep
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest

from dcp.cli.displays.run_output import PlainObserver
from dcp.errors import StoreRefusedError
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from dcp.lake.store import bucket_store
from dcp.lake.store.data_file import DataFile, DataFileWriter
from dcp.lake.store.file_commit import commit_files
from dcp.lake.store.lake_store import Append, BatchFunction
from dcp.lake.store.table import Transaction
from dcp.lake.tables.history import metadata_json
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.client.drained import wait_for
from tests.lake.memory_store import run_task
from tests.lake.object_store import ACCESS_KEY, BUCKET, Failure, ObjectStore, Request
from tests.lake.receiving import settings_for
from tests.lake.rounds_in_store import CONTENTS, make_table
from tests.lake.tables_at import files_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTAGE_SECONDS = 20.0
BUSY: Failure = ("503 Slow Down", "SlowDown")


def no_spark() -> "SparkSession":
    raise AssertionError("Spark was started")


@dataclass(frozen=True)
class WrittenHere:
    """Rows of ``changes`` whose tasks run in this process, one after the other."""

    table: FileTable
    tasks: int
    receive: BatchFunction

    def append(
        self, read_version: Callable[[], int], transaction: Transaction, metadata: Mapping[str, Any]
    ) -> None:
        location = self.table.location
        files: list[DataFile] = []
        for number in range(self.tasks):
            with DataFileWriter(location, CONTENTS) as writer:
                for batch in run_task(number, self.receive):
                    writer.write(batch)
                files += filter(None, [writer.finish()])
        commit_files(location, files, read_version(), transaction, metadata_json(metadata))


class StoreWithoutSpark(SparkStore):
    """A store in which nothing but rounds is written."""

    slots = 1

    @contextmanager
    def pool(self, name: str) -> Iterator[None]:
        yield

    def new_changes(self, tasks: int, receive: BatchFunction, *, are_few: bool = False) -> Append:
        return WrittenHere(files_of(self.table("changes")), tasks, receive).append


def create(
    table: FileTable,
    columns: pa.Schema,
    cluster_by: Collection[str],  # that would take Spark
    properties: Mapping[str, str],
) -> None:
    if not table.exists():
        make_table(table.location, columns, properties)


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(vbuckets=2, seed=5)) as cluster:
        yield cluster


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        store.options["max_retries"] = "1"  # so that a look ends at once
        yield store


@pytest.fixture
def settings(cluster: ProducerCluster, store: ObjectStore, tmp_path: Path) -> Settings:
    given = settings_for(
        cluster,
        tmp_path,
        round={"quiet_seconds": 0.2, "minimum_interval_seconds": 0.5, "tasks": 1},
        apply={"when": "never"},
    )
    lake = replace(
        given.lake,
        root=f"s3://{BUCKET}/{uuid4().hex}",
        storage_options=MappingProxyType(store.options),
        deletion_vectors=False,
    )
    return replace(given, lake=lake)


@contextmanager
def endless_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], list[str]]]:
    """Run without end; gives a function that returns the keys that are in the lake.

    The function raises what ended the run.
    """
    monkeypatch.setattr(FileTable, "create", create)
    access = source_access(settings)
    location = lake_location(settings)
    lake = open_or_create(SparkStore(no_spark, location), settings, query_cluster(access))
    lake = replace(lake, store=StoreWithoutSpark(no_spark, location))
    driver, stop = Driver(lake, settings, access, PlainObserver()), Event()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(driver.continuously, stop)

        def keys() -> list[str]:
            if running.done():
                running.result()
            rows = lake.changes.rows("key", is_kind(RowKind.MUTATION))
            return sorted(str(row["key"]) for row in rows)

        try:
            yield keys
        finally:
            stop.set()
    running.result()


def lines_of_waiting(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in "".join(capsys.readouterr()).splitlines() if "waiting" in line]


def test_an_endless_run_outlasts_a_store_that_does_not_answer(
    cluster: ProducerCluster,
    store: ObjectStore,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused: list[str] = []

    def refuse(request: Request) -> Failure:
        refused.append(request["REQUEST_METHOD"])
        return BUSY

    with endless_run(settings, monkeypatch) as keys:
        cluster.set(b"before", b"1")
        wait_for("the first round", lambda: keys() == ["before"])
        store.answer = refuse
        for number in range(10):
            cluster.set(b"meanwhile-%d" % number, b"1")
            sleep(OUTAGE_SECONDS / 10)
        store.answer = lambda _: None
        assert refused
        cluster.set(b"after", b"1")
        expected = sorted(["before", *(f"meanwhile-{number}" for number in range(10)), "after"])
        wait_for("all documents, each once", lambda: keys() == expected)
    [said] = lines_of_waiting(capsys)
    assert said.startswith("waiting for the object store: ") and "503" in said


def test_an_endless_run_outlasts_keys_that_are_replaced_one_after_the_other(
    cluster: ProducerCluster,
    store: ObjectStore,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The store refuses the new one with the old one, and the run keeps that pair for a while."""
    monkeypatch.setattr(bucket_store, "_KEYS_LAST", timedelta(seconds=1))
    key = tmp_path / "access_key"
    key.write_text(ACCESS_KEY)
    options = {**store.options, "access_key_id_file": str(key)}
    del options["access_key_id"]
    lake = replace(settings.lake, storage_options=MappingProxyType(options))
    with endless_run(replace(settings, lake=lake), monkeypatch) as keys:
        cluster.set(b"before", b"1")
        wait_for("the first round", lambda: keys() == ["before"])
        key.write_text("AKIDRENEWED")
        cluster.set(b"meanwhile", b"1")
        told: list[str] = []

        def is_refused() -> bool:
            told.extend(lines_of_waiting(capsys))
            return bool(told)

        wait_for("a line that says so", is_refused)
        store.access_keys = {"AKIDRENEWED"}

        def are_all_there() -> bool:
            with suppress(StoreRefusedError):  # this test's own look may have the old key yet
                return keys() == ["before", "meanwhile"]
            return False

        wait_for("all documents", are_all_there)
    assert told[0].startswith("waiting for the object store to take the keys: ")
    assert "refused the credentials" in told[0]
