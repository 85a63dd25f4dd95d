"""Options of the JVM by what it has to do; the archive of classes where set-up made one."""

import shlex
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from dcp.lake.config.settings import LakeSettings, Settings, SourceSettings
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.run import replicate as running
from dcp.lake.run.backfill_command import is_large_backfill
from dcp.lake.run.replicate import is_large_load, run
from dcp.lake.spark import jvm_options as options
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.object_store import BUCKET, ObjectStore, Request
from tests.lake.receiving import settings_for
from tests.lake.run.test_driver import probed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = "-XX:TieredStopAtLevel=1"


def settings_of(lake: LakeSettings) -> Settings:
    return Settings(SourceSettings(), lake=lake)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    archive = tmp_path / "my venv" / "classes.jsa"
    archive.parent.mkdir()
    monkeypatch.setattr(options, "class_archive_path", lambda: archive)
    return archive


@pytest.mark.parametrize("is_long", [True, False])
def test_only_a_jvm_that_does_not_live_long_has_the_quick_compiler(
    archive: Path, is_long: bool
) -> None:
    assert (QUICK in shlex.split(options.jvm_options(is_long=is_long))) != is_long


def test_an_archive_is_named_where_there_is_one(archive: Path) -> None:
    named = f"-XX:SharedArchiveFile={archive}"
    assert named not in shlex.split(options.jvm_options(is_long=False))
    archive.touch()
    assert named in shlex.split(options.jvm_options(is_long=False))


@pytest.mark.parametrize(
    ("high_seqnos", "is_large"), [((600_000, 399_999), False), ((600_000, 400_000), True)]
)
def test_a_load_is_large_from_a_million_changes_on(
    tmp_path: Path, high_seqnos: tuple[int, ...], is_large: bool
) -> None:
    settings = settings_of(LakeSettings(root=str(tmp_path)))
    assert is_large_load(settings, probed(*high_seqnos).high_seqnos) == is_large


@pytest.mark.parametrize(
    ("chosen", "is_large"),
    [(None, True), ({0, 1}, True), ({0, 2}, False), (frozenset(), False)],
)
def test_a_backfill_reads_its_vbuckets_from_their_beginning(
    chosen: set[int] | None, is_large: bool
) -> None:
    assert is_large_backfill(chosen, {0: 600_000, 1: 400_000, 2: 399_999}) == is_large


@pytest.mark.parametrize(
    "elsewhere", [LakeSettings(root="hdfs://host/lake"), LakeSettings(schema="spark_catalog.lake")]
)
def test_what_a_lake_lacks_that_spark_alone_can_read_is_not_known(elsewhere: LakeSettings) -> None:
    assert not is_large_load(settings_of(elsewhere), probed(2_000_000).high_seqnos)


def test_the_first_load_of_a_lake_in_a_store_is_large() -> None:
    with ObjectStore() as store:
        asked: list[Request] = []
        store.answer = asked.append
        options = MappingProxyType(store.options)
        settings = settings_of(LakeSettings(root=f"s3://{BUCKET}/none", storage_options=options))
        assert not is_large_load(settings, probed(900_000).high_seqnos)
        assert not asked, "so few changes need no look at the lake"
        assert is_large_load(settings, probed(2_000_000).high_seqnos)


def test_what_a_lake_holds_already_does_not_count(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MANY_CHANGES", 30)
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=4, seed=1)) as cluster:
        settings = settings_for(cluster, tmp_path)

        def is_large() -> bool:
            cluster = query_cluster(source_access(settings))
            return is_large_load(settings, cluster.high_seqnos)

        for number in range(40):
            cluster.set(b"key-%d" % number, b"1")
        assert is_large()
        run(settings, once=True, spark=spark)
        for number in range(29):
            cluster.set(b"key-%d" % number, b"2")
        assert not is_large()
        cluster.set(b"another", b"1")
        assert is_large()
