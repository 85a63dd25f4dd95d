"""A filtered lake from end to end: its tables, another filter, and what verify compares."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import ConfigError
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.config.settings import Settings
from dcp.lake.run.preview import preview
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import LakeTables, replicas_in
from dcp.lake.verify.compare import verify
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import lake_of, settings_for
from tests.lake.versions import version_in

KEYS = [b"key-%d" % number for number in range(12)]


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=31)) as cluster:
        cluster.create_scope("s")
        for name in ("c", "d"):
            cluster.create_collection("s", name)
            write(cluster, f"s.{name}")
        write(cluster, "_default._default")
        yield cluster


def write(cluster: ProducerCluster, collection: str, keys: list[bytes] = KEYS) -> None:
    for key in keys:
        cluster.set(key, b"{}", collection=collection)


def other(settings: Settings, **rules: Any) -> Settings:
    return replace(settings, filter=FilterSettings(**rules))


@pytest.mark.usefixtures("lakes_in_memory")
def test_tables_hold_what_passes(cluster: ProducerCluster, tmp_path: Path) -> None:
    settings = settings_for(cluster, tmp_path, filter={"include_collections": ("s.c",)})

    def require(settings: Settings, ends_with: bytes = b"", **wanted: str) -> None:
        """Run; compare the tables, by their collections' names, with ``wanted``.

        A path is that of a collection in the bucket; empty: the table is to be empty.
        """
        run(settings, once=True)
        lake = lake_of(settings)
        found = {
            (each.name.split("__") + ["default"] * 2)[2]: sorted(
                version_in(lake, each.name).column("key").to_pylist()
            )
            for each in replicas_in(lake)
        }
        assert found == {
            name: [key for key in present(cluster, path) if key.encode().endswith(ends_with)]
            for name, path in wanted.items()
        }

    require(settings, c="s.c", default="")
    cluster.delete(KEYS[0], collection="s.c")
    cluster.crash_restart(0, lost_seqnos=1)
    write(cluster, "s.d", KEYS[:3])
    require(settings, c="s.c", default="")

    some_keys = other(settings, include_keys="1$")
    plan = str(preview(some_keys))
    assert "vbuckets 2-3: epoch 1 begins at seqno 0" in plan
    assert "vbuckets 0-1: epoch 2 begins at seqno 0" in plan, "the crash made their first"
    require(some_keys, b"1", c="s.c", d="s.d", default="_default._default")
    with pytest.raises(ConfigError, match=r"include_collections: found 's\.x'"):
        run(other(settings, include_collections=("s.x",)), once=True)
    without = other(settings, exclude_collections=("s.c",))
    require(without, c="", d="s.d", default="_default._default")
    cluster.drop_collection("s", "d")
    # It may come back: the lake knows the name.
    require(other(settings, include_collections=("s.d",)), c="", d="", default="")


@pytest.mark.slow
@pytest.mark.usefixtures("lakes_in_memory")
def test_verify_compares_what_passes(
    cluster: ProducerCluster, view: Callable[[LakeTables], None], tmp_path: Path
) -> None:
    settings = settings_for(cluster, tmp_path, filter={"include_collections": ("s.d",)})

    def require_equal(settings: Settings) -> None:
        run(settings, once=True)
        lake = lake_of(settings)
        view(lake)
        report = verify(settings)
        assert (report.result, report.not_compared) == ("equal", ()), report
        assert {each.table for each in report.tables} == {each.name for each in replicas_in(lake)}

    require_equal(settings)
    some_keys = other(settings, include_collections=("s.d",), include_keys="1$")
    unread = verify(some_keys)
    assert (unread.differing, [left.vbucket for left in unread.not_compared]) == (0, [0, 1, 2, 3])
    require_equal(some_keys)
    cluster.drop_collection("s", "d")
    run(settings, once=True)
    assert verify(settings).result == "equal"


@pytest.mark.slow
@pytest.mark.usefixtures("lakes_in_memory")
def test_a_lake_that_starts_now(view: Callable[[LakeTables], None], tmp_path: Path) -> None:
    """Over a failover to below its start, and a rollback to 0 of one that was away too long."""
    settings = ClusterSettings(nodes=2, vbuckets=2, seed=7)
    with ProducerCluster(settings) as cluster:
        write(cluster, "_default._default")
        lake_settings = settings_for(cluster, tmp_path, filter={"since": "now"})

        def require(*keys: bytes) -> None:
            run(lake_settings, once=True)
            found = version_in(lake_of(lake_settings), "docs").column("key").to_pylist()
            assert sorted(found) == sorted(key.decode() for key in keys)

        def require_equal() -> None:
            view(lake_of(lake_settings))
            report = verify(lake_settings)
            assert (report.result, report.not_compared) == ("equal", ()), report

        require()
        write(cluster, "_default._default", KEYS[:4])
        require(*KEYS[:4])
        for node in range(2):  # what was written since, and two seqnos more
            vbucket = next(each for each in range(2) if cluster.vbucket_owner(each) == node)
            written = sum(cluster.vbucket_of(key) == vbucket for key in KEYS[:4])
            cluster.crash_restart(node, lost_seqnos=written + 2)
        write(cluster, "_default._default", KEYS[5:])
        require(*KEYS[5:])
        require_equal()
        for key in KEYS[6:]:
            cluster.delete(key)
        write(cluster, "_default._default", KEYS[:1])
        for vbucket in range(2):
            cluster.purge_tombstones(vbucket)
        require(KEYS[0], KEYS[5])
        require_equal()


def present(cluster: ProducerCluster, collection: str) -> list[str]:
    """Return the keys that a collection has, sorted; of none, none."""
    held = (
        cluster.state_at(vbucket, cluster.high_seqno(vbucket), collection=collection)
        for vbucket in range(4)
        if collection
    )
    return sorted(key.decode() for documents in held for key in documents)
