"""Two drivers at once on S3, again and again: no commit is lost, no row is wrong.

``DCPLAKE_TEST_SCALE=1`` starts 200 commands; every run of the tests starts two, `run` and
`maintain`.
"""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.fs as pafs
import pytest

from dcp.errors import FencedError, StoppedError
from dcp.lake.run.replicate import run
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import DOCS
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.object_store import BUCKET, ObjectStore
from tests.lake.receiving import lake_of, settings_for, write_config
from tests.lake.replicas import require_every_version_exact, require_no_row_twice, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

SCALE: Final = float(os.environ.get("DCPLAKE_TEST_SCALE", "0.01"))
SEED: Final = int(os.environ.get("DCPLAKE_TEST_SEED", "11"))
PAIRS: Final = max(1, round(100 * SCALE))
VBUCKETS: Final = 4
PATIENCE_SECONDS: Final = 300.0

RUN: Final = ("run", "--once")
BESIDE: Final = (
    RUN,
    RUN,
    RUN,
    ("maintain",),
    ("sql", "--write", "ALTER TABLE docs SET TBLPROPERTIES ('team' = 'travel')"),
)
# The loser of two drivers is fenced, also where both make the lake: no table is broken then.
ENDS: Final = frozenset(
    {
        0,
        FencedError.exit_code,
        StoppedError.exit_code,
        -signal.SIGKILL,
        128 + signal.SIGTERM,
    }
)


class Command:
    """A command of ``dcplake`` in a process group of its own."""

    def __init__(self, words: tuple[str, ...], config: Path, log: Path) -> None:
        self.words, self._log = words, log
        program = [sys.executable, "-m", "dcp.cli.main", *words, "--config", str(config)]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                program, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def send(self, number: int) -> None:
        """Send a signal to all of its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def ended(self) -> int:
        """Return the exit code, and the output if it is none that may be."""
        code = self.process.wait(PATIENCE_SECONDS)
        assert code in ENDS, f"{self.words}: {code}\n{self.output()}"
        assert "Traceback" not in self.output(), self.output()
        return code

    def output(self) -> str:
        return self._log.read_text()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=SEED)
    with ProducerCluster(settings) as cluster:
        yield cluster


def test_two_drivers_at_once_that_are_killed_and_stopped_at_random(
    spark: "SparkSession",
    cluster: ProducerCluster,
    store: ObjectStore,
    tmp_path: Path,
) -> None:
    chance = random.Random(SEED)
    settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})
    config = write_config(
        settings.source, f"s3://{BUCKET}/lake", store.options, "local[1]", tmp_path
    )
    written = 0
    codes: list[int] = []
    for pair in range(PAIRS):
        beside = chance.choice(BESIDE)
        if not pair and beside != RUN:  # it needs a lake
            cluster.set(b"key-1", b'{"n": 0}')
            run(settings, once=True, spark=spark)
            store.take_copy(Path(settings.lake.root), "lake")
        for _ in range(chance.randint(1, 40)):
            written += 1
            cluster.set(b"key-%d" % (written % 50), b'{"n": %d}' % written)
        both = [
            Command(words, config, tmp_path / f"{pair}-{number}.log")
            for number, words in enumerate((RUN, beside))
        ]
        if chance.random() < 0.4:
            victim = chance.choice(both)
            try:
                victim.process.wait(chance.uniform(3.0, 25.0))
            except subprocess.TimeoutExpired:
                victim.send(chance.choice((signal.SIGKILL, signal.SIGTERM)))
        codes += [each.ended() for each in both]
        for each in both:
            each.send(signal.SIGKILL)  # what a killed driver left running
    assert 0 in codes
    if PAIRS >= 20:  # among so many pairs some lose
        assert FencedError.exit_code in codes

    copied = str(tmp_path / "copied")
    pafs.copy_files(f"{BUCKET}/lake", copied, source_filesystem=store.files, use_threads=False)
    settings = replace(settings, lake=replace(settings.lake, root=copied))
    run(settings, once=True, spark=spark)  # goes on from what they left
    lake = lake_of(settings, spark)
    rounds = [each.round for each in history(lake.changes, WHOLE) if each.round is not None]
    assert rounds == list(range(len(rounds), 0, -1))
    applied = [each for each in history(lake.table(DOCS.name), WHOLE) if each.is_apply]
    assert [each.ours["from_round"] for each in applied[:-1]] == [
        each.ours["to_round"] for each in applied[1:]
    ]
    require_every_version_exact(lake, cluster)
    require_no_row_twice(lake)
    held = table_rows(lake, None)
    assert sum(map(len, held.values())) == min(written, 50)
