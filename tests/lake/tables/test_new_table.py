"""A table that is made or gets properties without Spark is the one that Spark would have made."""

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.control import CONTROL
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.new_table import commit_table
from dcp.lake.store.properties import are_plain, commit_properties
from dcp.lake.tables.schema import CHANGES, QUALITY, REPLICA, REPLICA_CLUSTERING
from tests.lake.tables_at import by_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_VECTORS = {
    "delta.logRetentionDuration": "interval 1209600 seconds",
    "dcplake.a": 'it\'s "1", \\é',
}
VECTORS = {**NO_VECTORS, "delta.enableDeletionVectors": "true"}


def store_in(spark: "SparkSession", folder: Path) -> SparkStore:
    return SparkStore(lambda: spark, LakeLocation(root=str(folder)))


def commit_of(folder: Path, version: int = 0) -> dict[str, Any]:
    """Return the actions of a table's commit, by their names, without ids and times."""
    lines = (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    actions = {name: told for line in lines for name, told in json.loads(line).items()}
    for name, told in actions.items():
        for each in ("id", "createdTime", "timestamp", "txnId", "engineInfo"):
            told.pop(each, None)
        for each in ("schemaString", "configuration"):
            if isinstance(told.get(each), str):
                told[each] = json.loads(told[each])
        if name == "commitInfo":
            parameters = told["operationParameters"]
            for each in {"clusterBy", "properties"} & parameters.keys():
                parameters[each] = json.loads(parameters[each])
        if name == "protocol":
            told |= {each: set(told[each]) for each in told if each.endswith("Features")}
    return actions


@pytest.mark.parametrize(
    ("columns", "cluster_by", "properties"),
    [
        pytest.param(REPLICA, REPLICA_CLUSTERING, VECTORS, id="replica"),
        pytest.param(REPLICA, REPLICA_CLUSTERING, NO_VECTORS, id="replica without vectors"),
        pytest.param(CHANGES, ("round",), VECTORS, id="changes"),
        pytest.param(CONTROL, (), NO_VECTORS, id="control"),
        pytest.param(QUALITY, (), VECTORS, id="vectors without clustering"),
    ],
)
def test_the_first_commit_says_what_sparks_would(
    spark: "SparkSession",
    tmp_path: Path,
    columns: pa.Schema,
    cluster_by: tuple[str, ...],
    properties: Mapping[str, str],
) -> None:
    ours, theirs = FolderLocation(tmp_path / "ours"), store_in(spark, tmp_path)
    assert ours.can_commit()
    commit_table(ours, columns, cluster_by, properties)
    by_spark(theirs.table("theirs")).create(columns, cluster_by, properties)
    assert commit_of(ours.path) == commit_of(tmp_path / "theirs")


def test_of_two_that_make_a_table_the_first_one_stands(tmp_path: Path) -> None:
    location = FolderLocation(tmp_path / "table")
    assert location.can_commit()
    for number in range(2):
        commit_table(location, CONTROL, (), {"dcplake.maker": str(number)})
    assert location.open().metadata().configuration == {"dcplake.maker": "0"}
    assert [*location.commits_from(0)] == [0]


def test_properties_are_set_and_removed_as_by_spark(spark: "SparkSession", tmp_path: Path) -> None:
    ours, theirs = FolderLocation(tmp_path / "ours"), tmp_path / "theirs"
    assert ours.can_commit()
    commit_table(ours, REPLICA, REPLICA_CLUSTERING, VECTORS)
    store = store_in(spark, tmp_path)
    table = by_spark(store.table("ours"))
    table.add_columns(pa.schema([("doc", pa.struct([("a", pa.int64())]))]), {"doc": "x"})
    shutil.copytree(ours.path, theirs)
    twin = by_spark(store.table("theirs"))
    given = {"dcplake.a": 'other "', "dcplake.b": ""}
    assert commit_properties(ours, given)
    twin.set_properties(given)
    assert commit_of(ours.path, 2) == commit_of(theirs, 2)
    removed = {"dcplake.a": None, "dcplake.missing": None}
    assert commit_properties(ours, removed)
    twin.set_properties(removed)
    assert commit_of(ours.path, 3) == commit_of(theirs, 3)
    assert table.properties() == twin.properties()
    assert table.columns().equals(twin.columns(), check_metadata=True)


def test_properties_that_many_set_at_once_are_all_there(tmp_path: Path) -> None:
    location = FolderLocation(tmp_path / "table")
    assert location.can_commit()
    commit_table(location, CHANGES, ("round",), NO_VECTORS)
    names = [f"dcplake.{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        assert all(pool.map(lambda name: commit_properties(location, {name: "1"}), names))
    assert location.open().metadata().configuration == NO_VECTORS | dict.fromkeys(names, "1")
    before = location.open().version()
    assert commit_properties(location, {names[0]: "1"})
    assert location.open().version() == before, "nothing to change makes no commit"


def test_deltas_own_properties_are_left_to_spark() -> None:
    assert not are_plain(["dcplake.a", "delta.enableDeletionVectors"])
    assert are_plain(["dcplake.a", "note"])


def test_a_table_that_gets_a_feature_meanwhile_is_left_to_spark(tmp_path: Path) -> None:
    location = FolderLocation(tmp_path / "table")
    assert location.can_commit()
    commit_table(location, CHANGES, ("round",), NO_VECTORS)
    [protocol] = [
        json.loads(line)
        for line in (location.path / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
        if "protocol" in line
    ]
    protocol["protocol"]["writerFeatures"].append("inCommitTimestamp")
    location.commit(1, json.dumps(protocol).encode())
    assert not commit_properties(location, {"dcplake.a": "1"})
    assert location.open().version() == 1


def test_properties_are_set_while_others_commit_again_and_again(tmp_path: Path) -> None:
    until = monotonic() + 0.5

    class BusyLocation(FolderLocation):
        def commit(self, version: int, content: bytes) -> None:
            if monotonic() < until:
                raise FileExistsError
            FolderLocation.commit(self, version, content)

    location = FolderLocation(tmp_path)
    assert location.can_commit()
    commit_table(location, CHANGES, ("round",), NO_VECTORS)
    assert commit_properties(BusyLocation(tmp_path), {"dcplake.b": "1"})
    assert location.open().metadata().configuration == NO_VECTORS | {"dcplake.b": "1"}
