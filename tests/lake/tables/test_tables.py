"""Making and opening lakes: ours, somebody else's, two drivers at once, folders and schemas."""

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dcp.errors import ConfigError, FencedError, LakeError, StoreUnavailableError
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.opening import spark_of
from dcp.lake.adapters.spark_store import SparkStore, append_frame
from dcp.lake.adapters.task_files import TaskFiles
from dcp.lake.change_log.changes import append_round, latest_round, newest_round
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import LakeSettings, Settings, SourceSettings, SparkSettings
from dcp.lake.config.storage_options import LOG_STORE
from dcp.lake.query.views import register_views
from dcp.lake.spark.hadoop import log_store_of
from dcp.lake.store.data_file import FileContents
from dcp.lake.store.lake_store import Append
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.sql import string
from dcp.lake.tables.collections import collections_in
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import (
    DOCS,
    LakeIdentity,
    LakeTables,
    create_lake,
    ensure_replicas,
    find_lake,
    open_lake,
    replica_of,
    replicas_in,
)
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS, FORMAT_VERSION, spark_ddl
from tests.lake.conftest import NewLake
from tests.lake.figures import figures_of
from tests.lake.given_rows import given_rows
from tests.lake.log_model import LogModel, apply_pending, read_documents
from tests.lake.tables_at import location_of, no_spark
from tests.lake.versions import version_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow

IDENTITY = LakeIdentity("lake-1", "default", "bucket-uuid", 2)


def test_a_lake_is_opened_as_it_was_made(spark: "SparkSession", tmp_path: Path) -> None:
    location = LakeLocation(root=str(tmp_path / "it's a `lake`"))
    create_lake(SparkStore(lambda: spark, location), IDENTITY)
    lake = open_lake(SparkStore(lambda: spark, location))
    assert lake.identity == IDENTITY
    assert (latest_round(lake), states_at(lake, 0)) == (0, {})
    again = create_lake(
        SparkStore(lambda: spark, location), LakeIdentity("lake-2", "default", "bucket-uuid", 2)
    )
    assert again.identity == IDENTITY
    with pytest.raises(LakeError, match="holds bucket 'default', found 'beer' "):
        create_lake(
            SparkStore(lambda: spark, location), LakeIdentity("lake-2", "beer", "bucket-uuid", 2)
        )


def test_a_lake_knows_its_cluster_from_when_it_was_made(
    spark: "SparkSession", tmp_path: Path
) -> None:
    ours, others = (replace(IDENTITY, cluster_uuid=name) for name in ("ours", "others"))
    older = LakeLocation(root=str(tmp_path / "older"))
    create_lake(SparkStore(lambda: spark, older), IDENTITY)
    assert create_lake(SparkStore(lambda: spark, older), others).identity == IDENTITY
    location = LakeLocation(root=str(tmp_path / "lake"))
    create_lake(SparkStore(lambda: spark, location), ours)
    for same in (IDENTITY, ours):
        assert create_lake(SparkStore(lambda: spark, location), same).identity == ours
    with pytest.raises(LakeError, match=r"uuid 'ours', found the cluster with uuid 'others'"):
        create_lake(SparkStore(lambda: spark, location), others)


@pytest.mark.parametrize(
    ("root", "left"),
    [("lake", ()), ("lake", (".00000000000000000000.json.1.tmp",)), ("100%", ())],
    ids=["a log without files", "a commit under way", "a place that only Spark reads"],
)
def test_a_lake_is_made_where_a_driver_died_as_it_made_it(
    spark: "SparkSession", tmp_path: Path, root: str, left: tuple[str, ...]
) -> None:
    location = LakeLocation(root=str(tmp_path / root))
    log = tmp_path / root / "changes" / "_delta_log"
    log.mkdir(parents=True)
    for name in left:
        (log / name).write_text("{")
    assert find_lake(SparkStore(lambda: spark, location)) is None
    assert create_lake(SparkStore(lambda: spark, location), IDENTITY).identity == IDENTITY


def test_names_that_spark_would_not_show_are_found(spark: "SparkSession", tmp_path: Path) -> None:
    """Spark shows no value that has ``url`` in it or in its key."""
    location = LakeLocation(root=str(tmp_path))
    create_lake(
        SparkStore(lambda: spark, location), LakeIdentity("lake-1", "curls", "bucket-uuid", 2)
    )
    lake = open_lake(SparkStore(lambda: spark, location))
    assert lake.identity.bucket == "curls"
    urls = replica_of("shop", "urls", 8)
    ensure_replicas(lake, [urls])
    assert replicas_in(lake) == (urls,)
    assert [each.collection for each in collections_in(lake).all] == [DOCS.collection, "shop.urls"]
    assert collections_in(lake).names >= {"shop", "shop.urls"}


def test_what_is_no_lake_is_named_and_left_alone(spark: "SparkSession", tmp_path: Path) -> None:
    location = LakeLocation(root=str(tmp_path))
    with pytest.raises(LakeError, match=r"table changes: found no Delta table there"):
        open_lake(SparkStore(lambda: spark, location))
    changes = location.table_sql("changes")
    spark.sql(f"CREATE TABLE {changes} (a INT) USING delta")
    for attempt in (
        open_lake,
        lambda store: create_lake(store, IDENTITY),
    ):
        with pytest.raises(LakeError, match=r"without the property dcplake.lake"):
            attempt(SparkStore(lambda: spark, location))
    spark.sql(f"ALTER TABLE {changes} SET TBLPROPERTIES ('dcplake.lake' = 'x')")
    with pytest.raises(LakeError, match=rf"found lake format '', expected {FORMAT_VERSION}"):
        open_lake(SparkStore(lambda: spark, location))
    now = f"'dcplake.formatVersion' = '{FORMAT_VERSION}'"
    spark.sql(f"ALTER TABLE {changes} SET TBLPROPERTIES ({now})")
    with pytest.raises(LakeError, match=r"found the columns a int, expected applied struct"):
        open_lake(SparkStore(lambda: spark, location))


def test_a_replica_of_another_lake_is_refused(new_lake: NewLake) -> None:
    lake = new_lake(1)
    with pytest.raises(LakeError, match=r"collectionId '0', expected '9'"):
        ensure_replicas(lake, [type(DOCS)(DOCS.name, 9)])
    assert replica_of("_default", "_default", 0) == DOCS


def test_a_session_of_others_that_may_overwrite_commits_on_s3_is_refused(
    spark: "SparkSession",
) -> None:
    """Ours has the log store of dcplake; its owner may choose another that settings name."""
    location = LakeLocation(root="s3a://bucket/lake")
    key = "spark.delta.logStore.s3a.impl"
    assert log_store_of(spark, "s3a://bucket/lake") == LOG_STORE
    theirs = spark.newSession()
    theirs.conf.unset(key)
    with pytest.raises(ConfigError, match=r"found no setting spark\.delta\.logStore\.s3a\.impl"):
        create_lake(SparkStore(lambda: theirs, location), IDENTITY)
    chosen = "io.delta.storage.S3SingleDriverLogStore"
    theirs.conf.set(key, chosen)
    assert log_store_of(theirs, "s3a://bucket/lake") == chosen
    keys = {"access_key_id": "k", "secret_access_key_file": "/nowhere"}
    lake = LakeSettings(root="s3a://bucket/lake", storage_options=keys)
    with pytest.raises(ConfigError, match=r"io\S+ in this .*, but not in \[spark\.conf\]"):
        spark_of(Settings(SourceSettings(), lake=lake), theirs)
    named = SparkSettings(conf={key: chosen})
    spark_of(Settings(SourceSettings(), lake=lake, spark=named), theirs)


def test_every_collection_has_a_table_name_of_its_own() -> None:
    collections = [
        *(("a__b", "c", 8), ("a", "b__c", 9), ("a", "B__C", 10), ("a", "b__c", 11)),
        *(("x" * 251, "y" * 251, 12), ("x" * 251, "y" * 250 + "z", 13), ("s%", "c-1", 0xFFFFFFFF)),
    ]
    names = [replica_of(*collection).name for collection in collections]
    assert names[:2] == ["docs__a__b__c__8", "docs__a__b__c__9"]
    assert names[-1] == "docs__s___c_1__ffffffff"
    assert len({name.lower() for name in names}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_]{1,200}", name) for name in names)


def test_replicas_are_known_from_the_moment_they_are_made(new_lake: NewLake) -> None:
    lake = new_lake(1)
    first, again = replica_of("shop", "orders", 26), replica_of("shop", "orders", 8)
    for replica in (first, again, first):
        ensure_replicas(lake, [replica])
    assert replicas_in(open_lake(SparkStore(lambda: lake.spark, lake.location))) == (
        DOCS,
        again,
        first,
    )
    version = history(lake.changes)[0].version
    ensure_replicas(lake, [first])
    assert history(lake.changes)[0].version == version
    shutil.rmtree(lake.location.path(again.name))
    assert replicas_in(lake) == (DOCS, first)
    assert [replica.table for replica in figures_of(lake).replicas] == [DOCS.name, first.name]


def test_two_drivers_make_one_lake(spark: "SparkSession", tmp_path: Path) -> None:
    location = LakeLocation(root=str(tmp_path / "lake"))

    def make(number: int) -> LakeIdentity:
        identity = LakeIdentity(f"lake-{number}", "default", "bucket-uuid", 2)
        session = spark.newSession()
        return create_lake(SparkStore(lambda: session, location), identity).identity

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(make, (1, 2))
    assert first == second == open_lake(SparkStore(lambda: spark, location)).identity


def in_files(frame: "DataFrame", lake: LakeTables) -> TaskFiles:
    """Let tasks write the rows of a frame into files of the log."""
    location = location_of(lake.changes)
    contents = FileContents(CHANGES, CHANGES_STATISTICS, 1_000_000)
    return TaskFiles(frame, lambda batches: batches, location, contents, {})


def appended_files(frame: "DataFrame", lake: LakeTables) -> Append:
    return in_files(frame, lake).append


def by_spark(frame: "DataFrame", lake: LakeTables) -> Append:
    """Let Spark append the rows of a frame."""
    table = lake.changes
    assert isinstance(table, FileTable)
    return partial(append_frame, frame, table, {})


Appending = Callable[["DataFrame", LakeTables], Append]

both_ways = pytest.mark.parametrize("appending", [by_spark, appended_files], ids=["spark", "files"])


@both_ways
def test_one_round_has_one_winner_and_the_loser_stops(
    new_lake: NewLake, appending: Appending
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 1)
    first = model.next_round()
    commit = model.commit(first, "writer-1")
    assert (commit.round, commit.writer) == (1, "writer-1")
    append = appending(lake.spark.createDataFrame(first), lake)
    with pytest.raises(FencedError, match=r"round 1 .* by writer writer-1"):
        append_round(lake, append, 1, "the loser")
    with pytest.raises(FencedError, match="another driver writes to this lake: found newest"):
        append_round(lake, append, 1, "the loser", verify=False)  # as if both had looked at once
    with pytest.raises(LakeError, match=r"round 3: found newest round 1"):
        append_round(lake, append, 3, "writer-1")
    assert version_in(lake, "changes").num_rows == len(first)


def test_an_attempt_of_ours_that_was_committed_late_is_no_other_driver(
    new_lake_in_memory: NewLake,
) -> None:
    """A store may carry out a request that it has let time out."""
    lake = new_lake_in_memory(1)
    model = LogModel(lake, 4)
    content = model.next_round()
    model.commit(content, "writer-1")
    with pytest.raises(StoreUnavailableError, match=r"round 1 .*next round continues from there"):
        append_round(lake, given_rows(lake, content), 1, "writer-1")


def test_alternating_drivers_one_goes_on(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 2)
    model.commit(model.next_round(), "writer-1")
    model.commit(model.next_round(), "writer-2")
    table = model.next_round()
    with pytest.raises(FencedError, match=r"by writer writer-2 after our own commits"):
        model.commit(table, "writer-1")
    model.commit(table, "writer-2")
    assert latest_round(lake) == 3
    expected = {vb.vbucket: vb.state for vb in model.vbuckets}
    assert states_at(lake, 3) == expected
    commits = history(lake.changes, WHOLE)
    assert newest_round(lake, [c for c in commits if c.round is None]) == 0  # reaches creation
    with pytest.raises(LakeError, match=r"found 0 positions in round 9"):
        states_at(lake, 9)


def test_a_catalog_schema_holds_a_lake_and_its_views(spark: "SparkSession") -> None:
    lake = create_lake(SparkStore(lambda: spark, LakeLocation(schema="lake_db")), IDENTITY)
    ensure_replicas(lake, [DOCS])
    model = LogModel(lake, 3)
    model.commit(model.next_round())
    names = register_views(lake)
    apply_pending(lake, [DOCS], 1, "w")
    model.commit(model.next_round())
    live = model.documents_at(model.complete[2])
    assert read_documents(lake, "SELECT * FROM lake_db.docs_live") == live
    assert {"documents", "docs_live", "positions"} <= set(names)
    spark.sql("DROP SCHEMA lake_db CASCADE")


def test_strings_and_vbuckets_in_sql_are_exact(new_lake: NewLake) -> None:
    from dcp.lake.receive.keys import key_string
    from dcp.types import vbucket_of

    lake = new_lake(64)
    register_views(lake)
    keys = [
        b"",
        b"\0",
        b"\xff",
        b"\\x00",
        b"it's ${x} \\n \n\"`",
        "\U0001f600Ä".encode(),
        b"k" * 250,
    ]
    texts = [key_string(key) for key in keys]
    columns = ", ".join(f"{string(text)}, vbucket_of({string(text)})" for text in texts)
    row = lake.spark.sql(f"SELECT {columns}").toArrow()
    found = [column[0].as_py() for column in row.columns]
    assert found[::2] == texts
    assert found[1::2] == [vbucket_of(key, 64) for key in keys]


def test_a_log_that_got_features_while_rows_came_gets_none_of_them(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 4)
    content = model.next_round()
    rows = in_files(lake.spark.createDataFrame(content), lake)
    assert rows.written()
    wanted = "'delta.enableInCommitTimestamps' = 'true'"
    lake.spark.sql(f"ALTER TABLE {lake.changes_sql} SET TBLPROPERTIES ({wanted})")
    with pytest.raises(
        LakeError, match=r"found the Delta features inCommitTimestamp.*run it again"
    ):
        append_round(lake, rows.append, 1, "writer-1")
    assert latest_round(lake) == 0
    model.commit(content)  # by Spark
    assert lake.spark.sql(f"SELECT count(*) FROM {lake.changes_sql}").collect()[0][0] > 0


@both_ways
def test_maintenance_in_the_moment_of_an_append_costs_an_attempt(
    new_lake: NewLake, tmp_path: Path, appending: Appending
) -> None:
    """As `maintain` does to a lake without a lock file: Spark evaluates the rows once more."""
    lake = new_lake(1)
    model = LogModel(lake, 3)
    content = model.next_round()
    evaluated, altered = tmp_path / "evaluated", tmp_path / "altered"
    folder = str(tmp_path)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marks = Path(folder)
        (marks / "evaluated").touch()
        while not (marks / "altered").exists():
            sleep(0.05)
        yield from batches

    def alter() -> None:
        while not evaluated.exists():
            sleep(0.05)
        theirs = open_lake(SparkStore(no_spark, lake.location))
        theirs.changes.set_properties({"note": "x"})
        evaluated.unlink()
        altered.touch()

    one_task = lake.spark.createDataFrame(content).coalesce(1)
    waiting = one_task.mapInArrow(wait, spark_ddl(CHANGES))
    append = appending(waiting, lake)
    with ThreadPoolExecutor(1) as pool:
        altering = pool.submit(alter)
        commit = append_round(lake, append, 1, "writer-1")
        altering.result()
    assert evaluated.exists() == (appending is by_spark), "only Spark's append ran again"
    assert (commit.version, commit.round) == (2, 1)
    assert lake.spark.sql(f"SELECT count(*) FROM {lake.changes_sql}").collect()[0][0] == len(
        content
    )
