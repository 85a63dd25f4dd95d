"""P3, P5, P7 with real processes: drivers and Python workers killed, at named steps and anywhere.

The producer lives in the test's process, so that its counters tell what was sent and when. One
driver in a process of its own serves all tests; what is left is gone on with in this process.

What a kill of the driver, its JVM and their Python workers leaves is what is on the disk then: a
copy of the lake is taken while all of them stand still. In the end the driver alone is killed, and
the others see to themselves.
"""

import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Final

import pytest

from dcp.cli.main import main
from dcp.errors import FencedError, StoppedError
from dcp.lake.change_log.applied import applied_of
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import Control, RequestState
from dcp.lake.change_log.erase_request import Erasure, key_hash
from dcp.lake.change_log.stop_points import VARIABLE
from dcp.lake.config.settings import Settings
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.run.erase_command import ask_erasure, check_erased
from dcp.lake.run.replicate import run
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import DOCS, LakeTables
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.driver_host import DriverHost
from tests.lake.interrupted_lakes import InterruptedLakes, data_files_in
from tests.lake.receiving import SMALL_FLOW, lake_of, overrides_of, settings_for
from tests.lake.replicas import (
    complete_seqnos,
    require_every_version_exact,
    require_live_exact,
    require_no_row_twice,
    source_rows,
    table_rows,
)
from tests.lake.statement_log import ENDED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
VBUCKETS = 4
COMMITTED = {"round.received": 0, "round.committed:2": 2, "apply.committed": 2}
"""Rounds of a run that are durable at its steps. A kill at any other one leaves what a kill in the
middle of a statement leaves, and `tests.simulation` has them all."""

ERASE_STEPS = ("erase.log", "erase.purged")
"""Who goes on from there finds no rows to erase, and perhaps files to delete. `test_erasure` goes
on from the earlier steps, too."""


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=5)) as cluster:
        yield cluster


def fill(cluster: ProducerCluster, count: int, start: int = 0, batch_size: int = 10_000) -> None:
    """Write documents; a crash of the producer loses whole batches of them."""
    for first in range(start, start + count, batch_size):
        with cluster.batch():
            for number in range(first, min(first + batch_size, start + count)):
                cluster.set(b"key-%d" % number, b'{"n": %d}' % number)


def change(cluster: ProducerCluster) -> None:
    fill(cluster, 60, start=20, batch_size=1)
    for number in range(10):
        cluster.delete(b"key-%d" % number)


def require_exact_and_whole(lake: LakeTables, cluster: ProducerCluster) -> None:
    """Every version exact, no row twice, and the newest one what the bucket holds now."""
    require_every_version_exact(lake, cluster)
    require_no_row_twice(lake)
    require_as_the_bucket(lake, cluster)


def words_of(settings: Settings) -> list[str]:
    return ["run", "--once", *overrides_of(settings)]


def copies_at(
    steps: Iterable[str], host: DriverHost, settings: Settings, folder: Path
) -> dict[str, Settings]:
    """Run a driver to its end; copy the lake at each step, as a kill would leave it.

    Returns the settings of the copies.
    """
    steps = [*steps]
    held = host.begin(words_of(settings), steps)
    copies: dict[str, Settings] = {}
    for number, (step, file) in enumerate(zip(steps, held, strict=True)):
        root = str(folder / f"left-{number}")
        host.wait_for(file, held[:number])
        host.stop()
        shutil.copytree(settings.lake.root, root)
        host.wake()
        copies[step] = replace(settings, lake=replace(settings.lake, root=root))
    assert host.ended(held).code == 0
    return copies


def sent_since(cluster: ProducerCluster, before: dict[int, list[int]]) -> set[tuple[int, int]]:
    return {
        (vbucket, seqno)
        for vbucket, seqnos in cluster.counters().seqnos_sent.items()
        for seqno in seqnos[len(before.get(vbucket, [])) :]
    }


def test_a_driver_killed_at_each_step_while_a_rollback_is_in_flight(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path, host: DriverHost
) -> None:
    """The first round of the run gets the order, the second begins the epoch and is undone."""
    fill(cluster, 80, batch_size=1)
    settings = settings_for(cluster, tmp_path)
    run(settings, once=True, spark=spark)
    for node in (0, 1):
        cluster.crash_restart(node, lost_seqnos=7)
    change(cluster)
    lake = lake_of(settings, spark)
    before = latest_round(lake)
    copies = copies_at(COMMITTED, host, settings, tmp_path)
    for step, committed in COMMITTED.items():
        print(f"step {step}")
        left = copies[step]
        lake = lake_of(left, spark)
        assert latest_round(lake) == before + committed
        sent = cluster.counters().seqnos_sent
        run(left, once=True, spark=spark)
        assert latest_round(lake) == before + 2
        if committed == 2:
            assert not sent_since(cluster, sent), "the producer sent again what was durable"
        require_as_the_bucket(lake, cluster)
        require_every_version_exact(lake, cluster)
        require_no_row_twice(lake)
        require_whole_audit(lake)
    require_live_exact(lake, cluster, latest_round(lake))


def test_a_driver_killed_at_the_later_steps_of_an_erasure(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path, host: DriverHost
) -> None:
    fill(cluster, 80)
    settings = settings_for(cluster, tmp_path)
    run(settings, once=True, spark=spark)
    change(cluster)
    run(settings, once=True, spark=spark)
    erasure = Erasure(DOCS.collection, frozenset({key_hash("key-3")}))
    ask_erasure(settings, erasure)
    for step, left in copies_at(ERASE_STEPS, host, settings, tmp_path).items():
        print(f"step {step}")
        run(left, once=True, spark=spark)
        lake = lake_of(left, spark)
        [request] = Control(lake).requests()
        assert request.state is RequestState.DONE
        assert check_erased(left, erasure).found == {}
        require_as_the_bucket(lake, cluster)


def require_as_the_bucket(lake: LakeTables, cluster: ProducerCluster) -> None:
    """The newest version is what the bucket holds now."""
    high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
    assert complete_seqnos(lake, latest_round(lake)) == high
    assert table_rows(lake, None) == source_rows(cluster, high)


def require_whole_audit(lake: LakeTables) -> None:
    """Each apply that took rows back has its audit, once."""
    commits = history(lake.table("docs"), WHOLE)
    undoing = [applied_of("docs", commit) for commit in commits if commit.is_apply]
    expected = {applied.version for applied in undoing if applied.undone}
    assert len(expected) == 1
    assert {version for version, *_ in require_audit_once(lake)} == expected


def require_audit_once(lake: LakeTables) -> set[tuple[Any, ...]]:
    """Each key that an apply took back is in its audit once; return them, behind the version."""
    rows = lake.table(AUDIT_TABLE).rows("version, vbucket, key", "true")
    places = {tuple(row.values()) for row in rows}
    assert len(places) == len(rows)
    return places


def test_a_python_worker_killed_in_mid_stream(
    spark: "SparkSession",
    cluster: ProducerCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark tries the task again; its first attempt's rows are not in the commit."""
    fill(cluster, 200)
    settings = settings_for(cluster, tmp_path)
    killed = tmp_path / "killed"
    of_workers = spark.sparkContext.environment
    monkeypatch.setitem(of_workers, VARIABLE, f"round.received=kill@{killed}")
    run(settings, once=True, spark=spark)
    assert killed.exists(), "no worker was killed"
    require_exact_and_whole(lake_of(settings, spark), cluster)


def test_sigterm_ends_a_driver_after_the_round_under_way(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path, host: DriverHost
) -> None:
    fill(cluster, 200)
    settings = settings_for(
        cluster,
        tmp_path,
        flow_control=SMALL_FLOW,
        round={"target_bytes": 1500},
    )
    [paused] = host.begin(words_of(settings), ["round.committed"])
    host.wait_for(paused)
    os.kill(host.pid, signal.SIGTERM)
    ended = host.ended([paused])
    assert ended.code == StoppedError.exit_code, ended.output
    assert "asked to stop" in ended.output
    assert "Traceback" not in ended.output
    lake = lake_of(settings, spark)
    assert latest_round(lake) == 1
    require_every_version_exact(lake, cluster)
    run(settings_for(cluster, tmp_path), once=True, spark=spark)
    require_exact_and_whole(lake, cluster)


def test_two_drivers_started_at_once(
    spark: "SparkSession",
    cluster: ProducerCluster,
    tmp_path: Path,
    host: DriverHost,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """P7: at least one goes on; the other does too (it came later) or stops, saying why."""
    fill(cluster, 80)
    settings = settings_for(cluster, tmp_path, lake={"root": str(tmp_path / "lake"), "lock": False})
    host.begin(words_of(settings))
    code = main([*words_of(settings), "--set", "spark.master=local[2]"])
    here, there = capsys.readouterr(), host.ended()
    outcomes = [(code, here.out + here.err), (there.code, there.output)]
    assert {0} <= {each for each, _ in outcomes} <= {0, FencedError.exit_code}, outcomes
    for each, output in outcomes:
        assert (each == 0) == ("dcplake run:" not in output), output
    run(settings, once=True, spark=spark)
    require_exact_and_whole(lake_of(settings, spark), cluster)


# --- in the middle of a statement


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
    Kill("MERGE docs", writing="docs"),  # of the driver alone
)
"""The first round of a run gets the orders, the second one begins new epochs."""

LONGEST_SECONDS: Final = 0.05
"""So long a statement has run at most when it is killed; all of them take longer."""


def test_killed_in_the_middle_of_each_statement(
    interrupted_lakes: InterruptedLakes, spark: "SparkSession", host: DriverHost
) -> None:
    """After a time in the statement that is drawn. The last one of the driver that all share."""
    lakes = interrupted_lakes
    settings = lakes.pending()
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
    host.begin(words_of(settings))

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
