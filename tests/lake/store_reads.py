"""What every place of a table must do, tried on one in an object store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dcp.lake.config.storage_options import options_of_delta_rs
from dcp.lake.store.object_place import ObjectPlace
from dcp.lake.tables.lake_table import LakeTable
from tests.lake.object_store import BUCKET, SECRET_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITERS = 4


def require_reads_and_appends(given: dict[str, str]) -> None:
    """Make a table on the server, append to it from several threads at once, and read it."""
    options = options_of_delta_rs(f"s3://{BUCKET}", given, {}, {})
    assert options is not None
    place = ObjectPlace(f"s3://{BUCKET}/reads/a table, ü", options)
    assert SECRET_KEY not in repr(place)
    table = LakeTable("delta.`t`", "t", place, _no_spark)
    assert not place.has_log()
    assert not table.exists()
    rows = pa.table({"id": ["a"]})
    table.create(rows.schema, (), {"dcplake.a": "1"})
    assert table.properties()["dcplake.a"] == "1"
    assert place.has_log()
    assert not place.has_data()
    created = place.commits_from(0)
    assert created.keys() == {0}

    def append(_: int) -> None:
        replace(table, remembered={}).append(rows, {"by": "tests"})

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(append, range(_WRITERS)))
    assert place.has_data()
    assert list(place.commits_from(0)) == list(range(_WRITERS + 1))
    assert place.commits_from(0)[0] == created[0]
    assert len(table.rows("id", "true")) == _WRITERS, "what was remembered is not the newest"
    commits = table.commits(_WRITERS + 10)
    assert [each["version"] for each in commits] == list(range(_WRITERS, -1, -1))
    assert commits[0]["userMetadata"] == '{"dcplake":{"by":"tests"}}'
    assert len(table.commits(2)) == 2


def _no_spark() -> "SparkSession":
    raise AssertionError("Spark was started")
