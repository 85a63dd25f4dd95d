"""Commands that find nothing to write start no Spark: what they ask is in Delta's log."""

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from dcp.cli.main import main
from dcp.lake.adapters import opening
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, ControlRequest, RequestAction, RequestState
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.config.settings import ApplyWhen, Settings
from dcp.lake.maintain import compaction
from dcp.lake.monitor.figures_reader import read_figures
from dcp.lake.rounds.observer import NEXT_ROUND
from dcp.lake.run import replicate as lake_run
from dcp.lake.run.preview import preview
from dcp.lake.store.data_file import DataFileWriter, FileContents
from dcp.lake.store.file_commit import commit_files
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.lock import locked
from dcp.lake.store.table import Operation
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history, metadata_json
from dcp.lake.tables.lake_tables import DOCS, LakeTables, open_lake
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS, RowKind, is_kind
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.records import plain
from tests.client.drained import PATIENCE_SECONDS, wait_for
from tests.lake.object_store import BUCKET, ObjectStore, kind_of
from tests.lake.receiving import settings_for
from tests.lake.tables_at import location_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

CHECKPOINT_INTERVAL = 10
DOCUMENTS = 50
COMMANDS = {
    ("run", "--once"): "no round: after round 1 no vbucket is behind",
    ("apply",): "nothing to apply",
    ("plan",): "no round: after round 1 no vbucket is behind",
    ("status",): f"docs: version 1, {DOCUMENTS} documents, holds that round",
    ("metrics",): 'dcplake_table_round{bucket="default",table="docs"} 1.0\n',
    ("report",): '"bucket":"default"',
    ("rollbacks",): "no rollback so far",
    ("cut",): "docs` VERSION AS OF 1;\n",
    ("tail", "--lines", "1"): '{"n": 1}',
    ("doctor",): ": of this bucket",
    ("pause",): "no further round begins until dcplake resume",
    ("resume",): "rounds begin again",
}


@dataclass(frozen=True)
class Idle:
    """A bucket, and its lake in a folder and in an object store, as options of commands."""

    bucket: list[str]
    folder: list[str]
    s3: list[str]
    store: ObjectStore


@pytest.fixture(scope="module")
def idle(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Idle]:
    folder = tmp_path_factory.mktemp("idle")
    with (
        ProducerCluster(ClusterSettings(vbuckets=4, seed=7)) as cluster,
        ObjectStore() as store,
    ):
        for number in range(DOCUMENTS):
            cluster.set(b"key-%d" % number, b'{"n": 1}')
        settings = settings_for(cluster, folder)
        lake_run.run(settings, once=True, spark=spark)
        source = {
            "source.seeds": ",".join(settings.source.seeds),
            "source.username": settings.source.username,
            "source.password_file": settings.source.password_file,
        }
        prefix = uuid4().hex  # moto's buckets outlive their server
        store.take_copy(Path(settings.lake.root), prefix)
        there = {
            "lake.root": f"s3://{BUCKET}/{prefix}",
            "lake.storage_options": ",".join(f"{k}={v}" for k, v in store.options.items()),
        }
        yield Idle(_sets(source), _sets({"lake.root": settings.lake.root}), _sets(there), store)


def _sets(values: Mapping[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def options(idle: Idle) -> list[str]:
    """The bucket and its lake in a folder."""
    return idle.bucket + idle.folder


@pytest.mark.parametrize(
    ("location", "words", "told"),
    [(location, words, told) for location in ("folder", "s3") for words, told in COMMANDS.items()],
)
def test_a_command_starts_no_spark(
    idle: Idle,
    location: str,
    words: tuple[str, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
    lake = idle.s3 if location == "s3" else idle.folder
    asked = [*idle.bucket, *lake] if words[0] in ("run", "plan", "doctor") else lake
    assert main([*words, *asked]) == 0
    said = "".join(capsys.readouterr())
    assert told in re.sub(r'(?<=,)lake="[0-9a-f]+",', "", said)


def add_rounds(lake: LakeTables, count: int) -> None:
    """Commit rounds that brought nothing, each with an apply, as if they had brought something.

    Their positions are those of the newest round.
    """
    table = lake.changes
    newest = latest_round(lake)
    positions = table.query(
        lambda name, _: (
            f"SELECT * FROM {name} WHERE {is_kind(RowKind.POSITION)} AND round = {newest}"
        ),
        CHANGES,
    )
    column = CHANGES.get_field_index("round")
    for number in range(newest + 1, newest + 1 + count):
        numbers = pa.array([number] * len(positions), CHANGES.field("round").type)
        rows = positions.set_column(column, CHANGES.field("round"), numbers)
        contents = FileContents(CHANGES, CHANGES_STATISTICS, MEBIBYTE)
        with DataFileWriter(location_of(table), contents) as writer:
            for batch in rows.to_batches():
                writer.write(batch)
            file = writer.finish()
        assert file is not None
        version = history(table, 1)[0].version
        metadata = {
            "lake": lake.identity.lake_id,
            "round": number,
            "writer": "w",
            "read_version": version,
        }
        fence = lake.identity.lake_id, number
        commit_files(location_of(table), [file], version, fence, metadata_json(metadata))
        docs = lake.table(DOCS.name)
        version = history(docs, 1)[0].version
        told = plain(AppliedVersion(DOCS.name, version, number - 1, number, number))
        metadata = {"lake": lake.identity.lake_id, "writer": "w", "read_version": version, **told}
        fence = f"{lake.identity.lake_id}:{DOCS.name}", version + 1
        commit_files(
            location_of(docs), [], version, fence, metadata_json(metadata), Operation.MERGE
        )


def requests_of_an_idle_pass(settings: Settings, asked: Counter[str]) -> int:
    """Count what a pass of a run without end asks, after its first one."""
    stop = threading.Event()
    with (
        pytest.MonkeyPatch.context() as patch,
        lake_run.driving(settings, "a run", None, stop, lambda _: False) as (driver, _),
    ):
        patch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark"))
        driver.poll(driver.apply_newest, stop)
        asked.clear()
        assert driver.poll(driver.apply_newest, stop) == NEXT_ROUND
        assert asked.keys() <= {"GET", "HEAD"}, "an idle pass writes nothing"
        return asked.total()


def test_looks_at_a_lake_on_s3_and_rounds_ask_as_much_after_many_rounds(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[list[int]] = []
    shown: list[int] = []
    with ProducerCluster(ClusterSettings(vbuckets=2, seed=3)) as cluster, ObjectStore() as store:
        asked = Counter[str]()
        store.answer = lambda request: asked.update([request["REQUEST_METHOD"]])
        cluster.set(b"key", b"1")
        settings = settings_for(cluster, tmp_path)
        lake_run.run(settings, once=True, spark=spark)
        cluster.crash_restart(0, lost_seqnos=1)
        cluster.set(b"key", b"1 again")
        lake_run.run(settings, once=True, spark=spark)  # the lake has a rollback
        root = Path(settings.lake.root)
        lake = open_lake(SparkStore(lambda: spark, LakeLocation(root=str(root))))
        monkeypatch.setattr(compaction, "COMMITS", 1000)
        # The first commit of a process tries the store, too.
        for name, rounds in (("first", 10), ("few", 0), ("many", 50)):
            # Each file of a commit behind the newest checkpoint is read by itself: the run's is
            # always the first.
            version = history(lake.changes, 1)[0].version
            add_rounds(lake, rounds + -version % CHECKPOINT_INTERVAL)
            cluster.set(b"key", b"2")
            lake_run.run(settings, once=True, spark=spark)
            store.take_copy(root, name)
            options = MappingProxyType(store.options)
            on_s3 = replace(settings.lake, root=f"s3://{BUCKET}/{name}", storage_options=options)
            there = replace(settings, lake=on_s3)
            tables = lake.changes, lake.table(DOCS.name)
            looks = [history(each, 1)[0].version % CHECKPOINT_INTERVAL for each in tables]
            run, read = partial(lake_run.run, once=True), partial(read_figures, searches=True)
            for look in (preview, run, read):
                asked.clear()
                with monkeypatch.context() as patch:
                    patch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark"))
                    look(there)
                assert asked.keys() <= {"GET", "HEAD", "PUT"}
                notes = 2 if look is run else 0
                assert asked["PUT"] == notes, "a run notes its look, and its end"
                looks.append(asked.total())
            shown.append(looks.pop())  # the times and reports of the newest rounds, 50 at most
            looks.append(requests_of_an_idle_pass(there, asked))
            cluster.set(b"key", b"3")
            receiving = replace(there, apply=replace(settings.apply, when=ApplyWhen.NEVER))
            asked.clear()
            lake_run.run(receiving, once=True, spark=spark)  # which knows no way to S3
            looks.append(asked.total())
            counted.append(looks)
    _, few, many = counted
    assert few == many, "the same at the same distance from checkpoints"
    *_, plan, idle_run, idle_pass, one_round = many
    assert plan < 46 and idle_run < 50 and idle_pass < 10 and one_round < 76, counted
    assert max(shown) < 100, shown


def test_looks_at_a_lake_on_s3_ask_as_much_after_many_requests_to_its_driver(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
    asked = Counter[str]()
    monkeypatch.setattr(idle.store, "answer", lambda request: asked.update([kind_of(request)]))
    counted: list[int] = []
    written = 0
    for count in (*range(1, 9), 24):
        while written < count:
            assert main(["pause" if written % 2 else "resume", *idle.s3]) == 0
            written += 1
        asked.clear()
        assert main(["status", *idle.s3]) == 0
        counted.append(asked.total())
    assert max(counted) <= 60 and counted[-1] <= max(counted[:-1]), counted
    assert main(["resume", *idle.s3]) == 0


def test_an_idle_run_after_a_rollback_starts_no_spark(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = ClusterSettings(nodes=2, vbuckets=2, replicas=1, seed=9)
    with ProducerCluster(bucket) as cluster:
        for number in range(8):
            cluster.set(b"key-%d" % number, b"1")
        settings = settings_for(cluster, tmp_path)
        cluster.wait_until_replicated()
        cluster.pause_replication()
        for number in range(8):
            cluster.set(b"key-%d" % number, b"2")
        lake_run.run(settings, once=True, spark=spark)
        cluster.failover(0)
        lake_run.run(settings, once=True, spark=spark)
        assert main(["rollbacks", "--lake", settings.lake.root]) == 0
        assert "key-" in capsys.readouterr().out, "something was taken back"
        monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
        lake_run.run(settings, once=True)


def test_the_lake_of_another_bucket_is_none_of_ours(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProducerCluster(ClusterSettings(vbuckets=4, seed=8)) as other:
        seeds = ["--set", f"source.seeds={','.join(other.seeds)}"]
        assert main(["doctor", *options, *seeds]) == 7
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("failed   lake ")
    assert "the bucket was created again, use another lake for it\n" in said.err


@pytest.mark.parametrize(
    "command", ["doctor", "plan", "plan --backfill", "run --once", "verify", "backfill"]
)
def test_a_bucket_that_the_cluster_does_not_have_is_not_the_lakes(
    options: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), *options, "--set", "source.bucket=nosuch"]) == 7
    said = capsys.readouterr().err
    assert "this lake holds bucket 'default', found 'nosuch' (source.bucket)" in said
    assert said.count("\n") == 1


def test_asking_another_driver_for_a_backfill_and_cancelling_it_start_no_spark(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
    assert main(["backfill", "--cancel", *options]) == 2
    assert "found no backfill that is open" in capsys.readouterr().err
    root = options[-1].removeprefix("lake.root=")
    lake = open_lake(SparkStore(lambda: pytest.fail("Spark was started"), LakeLocation(root=root)))
    control = Control(lake)

    def open_backfills() -> list[ControlRequest]:
        return [
            each
            for each in control.requests()
            if each.is_open and each.action == RequestAction.BACKFILL
        ]

    with ThreadPoolExecutor(1) as beside, locked(Path(root), "a driver", makes_lake=False):
        asked = beside.submit(main, ["backfill", "--vbuckets", "0", *options])
        wait_for("a request", lambda: bool(open_backfills()))
        assert main(["backfill", "--cancel", *options]) == 0
        assert "ends it before another round" in capsys.readouterr().out
        [request] = open_backfills()
        assert request.is_to_be_cancelled
        control.write(request, RequestState.CANCELLED, detail="vbucket 0 as it was")
        assert asked.result(PATIENCE_SECONDS) == 130
    assert "somebody cancelled it; vbucket 0 as it was" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "plan"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("filter.since=now", "found now, and lake "),
        ("filter.include_collections=inventry", "found 'inventry', expected scopes or collections"),
        ("policy.dropped_collections=gon=keep", "found 'gon', expected scopes or collections"),
    ],
)
def test_the_doctor_refuses_what_a_run_refuses(
    options: list[str],
    command: str,
    setting: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([command, *options, "--set", setting]) == 2
    assert said in capsys.readouterr().err
