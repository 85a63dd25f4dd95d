"""P3: a driver is killed in the middle of the statements that make a round and an apply.

The driver, its JVM and their Python workers end at one instant, after a time in the statement that
is drawn; or one of them alone does, and the others see to themselves. Each driver is a process of
its own; the next one starts while the last is at work.
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
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
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

    ``writing``: only when it has written data files. ``who``: all processes, or one alone.
    """

    statement: str
    number: int = 1
    writing: str | None = None
    who: str = "all"


KILLS: Final = (
    Kill("CREATE undone"),  # with the first apply that takes something back
    Kill("append changes"),
    Kill("append changes", number=2, writing="changes"),
    Kill("append changes", number=2, who="JVM"),
    Kill("MERGE docs", writing="docs"),
    Kill("MERGE docs", who="driver"),
    Kill("INSERT undone", number=2),  # its first is of a run's beginning
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
    next_host = DriverHost(tmp_path / "host-0")
    for number, kill in enumerate(KILLS, 1):
        host = next_host
        try:
            lakes.lose(5)  # what was published just now
            lakes.write(20)
            stop_in(host, kill, lakes, settings)
            if number < len(KILLS):
                next_host = DriverHost(tmp_path / f"host-{number}")
            carry_out(host, kill)
        finally:
            host.kill()
        lakes.write()
        run(settings, once=True, spark=spark)
        lakes.require_exact(settings)
    require_audit_once(lakes.lake(settings))


def test_no_statement_of_a_round_and_an_apply_is_left_out(
    lakes: InterruptedLakes, tmp_path: Path
) -> None:
    """An undisturbed driver that follows rollbacks runs no statement that is not killed in."""
    settings = lakes.pending()
    host = DriverHost(tmp_path / "host")
    try:
        for _ in range(2):
            host.begin(lakes.words("run", settings, "--once"))
            ended = host.ended()
            assert ended.code == 0, ended.output
            assert "rolled back" in ended.output
            ran = set(host.statements) - {ENDED}
            assert ran <= {kill.statement for kill in KILLS}
            lakes.lose(5)
            lakes.write(20)
    finally:
        host.kill()


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


def carry_out(host: DriverHost, kill: Kill) -> None:
    if kill.who == "driver":
        host.kill_driver()
    elif kill.who == "JVM":
        host.kill_jvm()
        ended = host.ended()
        assert ended.code == 1, ended.output
        # PySpark's own threads complain, too.
        assert "Spark's JVM has ended (killed by SIGKILL)" in ended.output, ended.output
    else:
        host.kill()


def require_audit_once(lake: LakeTables) -> None:
    """Each key that an apply took back is in its audit once."""
    twice = lake.spark.sql(
        f"SELECT version, vbucket, key FROM {lake.table_sql(AUDIT_TABLE)} "
        "GROUP BY version, vbucket, key HAVING count(*) > 1"
    ).collect()
    assert twice == []
