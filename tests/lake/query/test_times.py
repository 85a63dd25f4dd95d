"""Times, dates and numbers at their bounds: the same for every engine, whoever wrote the file."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dcplake
from dcp.lake.apply.merge_plan import RowBudget
from dcp.lake.config.settings import Settings
from dcp.lake.maintain.steps import maintain
from dcp.lake.tables.schema import REPLICA, TYPED
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcplake.lake import Lake
from tests.lake.receiving import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONTRACT: Final = """
collection = "_default._default"
mode = "quarantine"
[columns]
"$.at" = "timestamp"
"$.day" = "date"
"$.small" = "decimal(9,2)"
"$.large" = "decimal(18,4)"
"$.huge" = "decimal(38,2)"
"$.n" = "bigint"
"$.log[*]" = "timestamp"
"$.named.*" = "timestamp"
"""
DAYS: Final = ("0001-01-01", "1582-10-04", "1582-10-15", "1677-09-20", "2262-04-12", "9999-12-31")
ASKED: Final = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("small", pa.decimal128(9, 2)),
        ("large", pa.decimal128(18, 4)),
        ("huge", pa.decimal128(38, 2)),
        ("n", pa.int64()),
        ("modified_at", pa.timestamp("us", "UTC")),
    ]
)
PATHS: Final = {name: name if name == "modified_at" else f"doc.{name}" for name in ASKED.names}
OTHER_WAYS: Final = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.shuffle.partitions": "3",
    "spark.databricks.delta.schema.autoMerge.enabled": "true",
}
"""Settings of a user's session under which the same statements mean, or write, something else."""


def document(number: int, day: str) -> dict[str, Any]:
    time = f"{day}T23:59:59.999999Z" if number % 2 else f"{day}T00:00:00Z"
    sign = 1 if number % 2 else -1
    return {
        "at": time,
        "day": day,
        "small": sign * 9999999.99,
        "large": sign * 99999999999999 + number,
        "huge": sign * 10**30,
        "n": sign * (2**63 - 1),
        "log": [time],
        "named": {"x": time},
    }


class Bucket:
    """A bucket with such documents, the lake of a user, and the session that he works in."""

    def __init__(self, cluster: ProducerCluster, folder: Path, user: "SparkSession") -> None:
        self.cluster, self.user = cluster, user
        self.contract = folder / "schemas" / "default.toml"
        self.contract.parent.mkdir()
        self.contract.write_text(CONTRACT)
        apply = {"contracts_folder": str(self.contract.parent)}
        self.settings: Settings = settings_for(
            cluster, folder, round={"quiet_seconds": 0.2}, apply=apply
        )
        self.lake = Lake(self.settings, user)
        self.docs = str(Path(self.settings.lake.root) / "docs")

    def put(self, names: str) -> None:
        for name in names:
            for number, day in enumerate(DAYS):
                key = f'{name}{number} it\'s \\d "q" ${{x}}'
                self.cluster.set(key.encode(), json.dumps(document(number, day)).encode())

    def run(self, *, of_many: bool = False) -> int:
        """Run; return the version that the last apply made."""
        with pytest.MonkeyPatch.context() as patched:
            if of_many:  # tasks read the rows, and write the first ones as files
                patched.setattr("dcp.lake.apply.applier.ROW_BUDGET", RowBudget(rows=0))
            return self.lake.run().applied[-1].version


@pytest.fixture
def bucket(spark: "SparkSession", tmp_path: Path) -> Iterator[Bucket]:
    user = spark.newSession()
    for key, value in OTHER_WAYS.items():
        user.conf.set(key, value)
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=4, seed=11)) as cluster:
        yield Bucket(cluster, tmp_path, user)
    spark.createDataFrame([], "a INT")  # the active one again


def bounds_sql(table: str) -> str:
    listed = (f"min({path}) AS min_{n}, max({path}) AS max_{n}" for n, path in PATHS.items())
    return f"SELECT {', '.join(listed)}, count(*) AS found FROM {table}"


def by_polars(table: str) -> pa.Table:
    frame = pl.scan_delta(table)
    fields = {
        n: pl.col(n) if n == path else pl.col("doc").struct.field(n) for n, path in PATHS.items()
    }
    bounds = [
        each.alias(f"{word}_{n}")
        for n, field in fields.items()
        for word, each in (("min", field.min()), ("max", field.max()))
    ]
    return frame.select(*bounds, pl.len().alias("found")).collect().to_arrow()


def by_duckdb(table: str) -> pa.Table:
    [extension] = Path(str(resources.files("duckdb_extension_delta"))).rglob(
        "delta.duckdb_extension"
    )
    duckdb.load_extension(str(extension))
    return duckdb.sql(bounds_sql(f"delta_scan('{table}')")).to_arrow_table()


def by_delta_rs(table: str) -> pa.Table:
    asked = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table))
    return pa.table(asked.execute(bounds_sql("t")).read_all())


def require_all_read_the_same(bucket: Bucket, spark: "SparkSession") -> None:
    """Compare what each engine takes for the bounds of each column, and the types in the files."""
    readers: dict[str, Callable[[str], pa.Table]] = {
        "spark": lambda table: spark.sql(bounds_sql(f"delta.`{table}`")).toArrow(),
        "delta-rs": by_delta_rs,
        "polars": by_polars,
        "duckdb": by_duckdb,
    }
    kinds = [pa.field(f"{w}_{each.name}", each.type) for each in ASKED for w in ("min", "max")]
    schema = pa.schema([*kinds, ("found", pa.int64())])
    found = {name: read(bucket.docs).cast(schema).to_pylist()[0] for name, read in readers.items()}
    told = found["spark"]
    assert (told["min_at"], told["max_at"]) == (
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    )
    assert (told["min_day"], told["max_day"]) == (date(1, 1, 1), date(9999, 12, 31))
    assert (told["min_small"], told["max_small"]) == (
        Decimal("-9999999.99"),
        Decimal("9999999.99"),
    )
    assert found == dict.fromkeys(readers, told)
    for table in (Path(bucket.docs), Path(bucket.docs).with_name("changes")):
        assert {kind: len(of_it) for kind, of_it in physical_types(table).items()} == dict.fromkeys(
            physical_types(table), 1
        )


def physical_types(table: Path) -> dict[str, set[str]]:
    """Return how each column is stored, in all files of all versions."""
    found: dict[str, set[str]] = {}
    for file in table.glob("*.parquet"):
        schema = pq.ParquetFile(file).schema
        for place in range(len(schema)):
            column = schema.column(place)
            kind = f"{column.physical_type} {column.logical_type} {column.length}"
            found.setdefault(column.path, set()).add(kind)
    return found


def test_one_type_for_each_column_whoever_writes_and_whatever_a_session_is_set_to(
    bucket: Bucket, spark: "SparkSession", tmp_path: Path
) -> None:
    bucket.user.createDataFrame([], "a INT")  # the active one, as in a notebook
    before = dict(bucket.user.conf.getAll)
    bucket.put("ab")
    first = bucket.run(of_many=True)
    bucket.put("bc")
    bucket.run()
    bucket.put("cd")
    bucket.run(of_many=True)
    require_all_read_the_same(bucket, spark)
    bucket.contract.write_text(CONTRACT + '"$.more" = "timestamp"\n')
    bucket.put("e")
    bucket.run()
    maintain(bucket.settings, steps=["optimize"], spark=bucket.user)
    require_all_read_the_same(bucket, spark)
    assert bucket.lake.verify().result == "equal"
    assert dict(bucket.user.conf.getAll) == before
    require_python_gives_what_the_table_has(bucket, tmp_path, first)


def require_python_gives_what_the_table_has(bucket: Bucket, folder: Path, first: int) -> None:
    place = folder / "100%"  # delta-rs takes that for another name: Spark reads it
    place.symlink_to(bucket.settings.lake.root)
    for lake in (bucket.lake, dcplake.open(place, spark=bucket.user)):
        found = lake.to_arrow(where="doc.small > 0")
        assert found.schema.names == [*REPLICA.names, *TYPED.names]
        times = {row["at"] for row in found["doc"].to_pylist()}
        last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        assert len(times) == 3 and max(times) == last
        assert lake.to_polars(columns=["doc", "key"]).columns == ["doc", "key"]
        [doc] = lake.to_arrow(columns=["doc"], version=first, where="key LIKE 'a0%'").to_pylist()
        assert doc["doc"]["at"] == datetime(1, 1, 1, tzinfo=UTC)
        assert "more" not in doc["doc"], "the columns are those of the version"
