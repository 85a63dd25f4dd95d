"""P3: a driver is killed in the middle of the statements that make a round and an apply.

What a kill of the driver, its JVM and their Python workers leaves is what is on the disk then: a
copy of the lake is taken while all of them stand still, after a time in the statement that is
drawn, so that one driver serves several kills. In the end the driver alone is killed, and the
others see to themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Final

import pytest

from dcp.lake.config.settings import Settings
from dcp.lake.run.run import run
from dcp.lake.tables.tables import AUDIT_TABLE, LakeTables
from dcp.producer.cluster import ProducerCluster
from dcp.server.model.cluster_settings import ClusterSettings
from tests.lake.driver_host import DriverHost
from tests.lake.interrupted_lakes import InterruptedLakes, data_files_in
from tests.lake.statement_log import ENDED
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True)
class Kill:
    """Which statement to kill in: its name, and which one of that name.

    ``writing``: only when it has written data files.
    """

    statement: str
    number: int = 1
    writing: str | None = None


KILLS: Final = (
    Kill("append changes"),
    Kill("append changes", number=2, writing="changes"),
    Kill("INSERT undone"),
    Kill("MERGE docs", writing="docs"),
    Kill("MERGE docs"),  # of the driver alone
)
"""The first round of a run gets the orders, the second one begins new epochs."""

LONGEST_SECONDS: Final = 0.05
"""So long a statement has run at most when it is killed; all of them take longer."""


@pytest.fixture
def lakes(spark: "SparkSession", tmp_path: Path) -> Iterator[InterruptedLakes]:
    [seed] = seeds(1, first=8500)
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=seed)) as cluster:
        yield InterruptedLakes(cluster, spark, tmp_path, seed)


def test_killed_in_the_middle_of_each_statement(
    lakes: InterruptedLakes, spark: "SparkSession", tmp_path: Path
) -> None:
    settings = lakes.pending()
    host = DriverHost(tmp_path / "host")
    try:
        for kill in KILLS:
            lakes.lose(5)  # what was published just now
            lakes.write(20)
            stop_in(host, kill, lakes, settings)
            if kill is KILLS[-1]:
                host.kill_driver()
            else:
                settings = lakes.copy(settings)
                host.wake()
                require_none_left_out(host)
            lakes.write()
            run(settings, once=True, spark=spark)
            lakes.require_exact(settings)
    finally:
        host.kill()
    require_audit_once(lakes.lake(settings))


def require_none_left_out(host: DriverHost) -> None:
    """A driver that follows rollbacks to its end runs no statement that is not killed in."""
    ended = host.ended()
    assert ended.code == 0, ended.output
    assert "rolled back" in ended.output
    assert set(host.statements) - {ENDED} <= {kill.statement for kill in KILLS}


def stop_in(host: DriverHost, kill: Kill, lakes: InterruptedLakes, settings: Settings) -> None:
    """Let a driver come into the statement and be there for a while, drawn; see that it is there.

    All stand still then, so that what is seen is where the kill falls.
    """
    root, place = settings.lake.root, kill.writing
    files = data_files_in(root, place) if place else 0
    host.begin(lakes.words("run", settings, "--once"))

    def is_there() -> bool:
        count = host.statements.count(kill.statement)
        return host.statement == kill.statement and kill.number == count

    host.wait_until(is_there, str(kill))
    if place:
        host.wait_until(lambda: data_files_in(root, place) > files, f"data of {kill}")
    else:
        sleep(lakes.random.uniform(0, LONGEST_SECONDS))
    host.stop()
    assert is_there()


def require_audit_once(lake: LakeTables) -> None:
    """Each key that an apply took back is in its audit once."""
    rows = lake.table(AUDIT_TABLE).rows("version, vbucket, key", "true")
    assert len({tuple(row.values()) for row in rows}) == len(rows)
