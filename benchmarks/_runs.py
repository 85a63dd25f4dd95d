"""Common parts of the Spark benchmarks: producer settings, a session, costs of a run's steps."""

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from benchmarks._documents import key_of
from benchmarks._producer import BENCH_VBUCKETS, PASSWORD, USER, BenchProducer
from dcp.lake.config.settings import LakeSettings, RoundSettings, Settings, SourceSettings
from dcp.lake.rounds.observer import Observer, RoundProgress
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.spark.session import build_session
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.types import vbucket_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEW_VBUCKETS: Final = (3, 17, 31, 62)
MIB: Final = 1024 * 1024
COUNTED_READS: Final = {"spark.hadoop.parquet.hadoop.vectored.io.enabled": "false"}
"""Hadoop does not count the vectored reads of a local file system (``RawLocalFileSystem``), which
Parquet uses by default: without this, what is read of columns is missing."""
_NO_LIMIT_BYTES: Final = 2**45
_NO_LIMIT_SECONDS: Final = 3600.0


def require_documents(name: str, documents: int, changes: int) -> None:
    """End the process with one line unless the few vbuckets hold so many documents to change."""
    in_few = (
        number
        for number in range(documents)
        if vbucket_of(key_of(number), BENCH_VBUCKETS) in FEW_VBUCKETS
    )
    held = sum(1 for _ in islice(in_few, changes))
    if changes > held:
        vbuckets = ", ".join(map(str, FEW_VBUCKETS))
        raise SystemExit(
            f"found {changes:,} changes of documents in vbuckets {vbuckets}, which hold {held:,} "
            f"of {name} {documents:,}; give at most {held:,} changes, or more documents"
        )


def settings_for(source: BenchProducer, folder: Path, lake: str) -> Settings:
    """Return the default settings with a lake in ``folder`` and rounds that no budget ends."""
    secret = folder / "password"
    secret.write_text(PASSWORD + "\n")
    return Settings(
        source=SourceSettings(seeds=source.seeds, username=USER, password_file=str(secret)),
        round=RoundSettings(target_bytes=_NO_LIMIT_BYTES, target_seconds=_NO_LIMIT_SECONDS),
        lake=LakeSettings(root=str(folder / lake)),
    )


def session(
    folder: Path, cores: int, driver_memory: str, extra: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return the product's own session; ``extra`` are further Spark settings."""
    return build_session(
        app_name="dcplake benchmark",
        master=f"local[{cores}]",
        driver_memory=driver_memory,
        spark_log=folder / "spark.log",
        extra={"spark.sql.warehouse.dir": str(folder / "warehouse"), **(extra or {})},
    )


def bytes_read(spark: "SparkSession") -> int:
    """Return what this JVM has read from file systems so far; all of it with `COUNTED_READS`."""
    jvm: Any = spark._jvm
    statistics = jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
    return sum(each.getBytesRead() for each in statistics)


class StepTimes(Observer):
    """Notes how long the steps of a run took."""

    def __init__(self) -> None:
        self.begin = self._last = monotonic()
        self.round_seconds: list[float] = []
        self.apply_seconds: list[float] = []
        self.plan_seconds: list[float] = []
        self.rows = 0
        self.frame_bytes = 0
        self.applied_version: AppliedVersion | None = None

    def planned(self, plan: RoundPlan, progress: RoundProgress | None) -> None:
        """Note the time since the last step."""
        self.plan_seconds.append(self._lap())

    def committed(self, report: RoundReport) -> None:
        """Note a round: receive, append, and reading back what it brought."""
        self.round_seconds.append(self._lap())
        self.rows += report.rows
        self.frame_bytes += report.frame_bytes

    def applied(self, version: AppliedVersion) -> None:
        """Note an apply: its plan, its MERGE, and reading it back."""
        self.apply_seconds.append(self._lap())
        self.applied_version = version

    def _lap(self) -> float:
        now = monotonic()
        seconds, self._last = now - self._last, now
        return seconds


def line(name: str, seconds: Iterable[float], rows: int, row_bytes: int, base: float) -> str:
    """Return one row of a table: median, rows and bytes a second, and the ratio to ``base``."""
    middle = median(seconds)
    return (
        f"{name:42} {middle:8.2f} s {rows / middle:12,.0f} rows/s "
        f"{rows * row_bytes / middle / 1e6:8.1f} MB/s   {base / middle:5.2f}"
    )
