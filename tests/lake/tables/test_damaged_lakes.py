"""A lake that lost files, or whose files are damaged: one line that says what helps, and it does.

Each case damages a copy of one lake and runs the commands on it as a user does. Either a command
goes on, and the table is what the bucket holds, or it ends with code 7 and one line, and no table
has changed. Then what the line says is done, and the table is what the bucket holds again: where
that takes all away that is damaged, one case of each line does it.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from dcp.cli.main import main
from dcp.errors import REREAD_COMMAND, LakeError, SetupError
from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import open_lake
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import PASSWORD_FILE, USER, lake_of, settings_for
from tests.lake.replicas import rows_of, source_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VBUCKETS: Final = 2
FREQUENT_CHECKPOINTS: Final = {"delta.checkpointInterval": "2"}
"""The commit of this property after the first round makes a checkpoint, the second round none."""


@dataclass(frozen=True)
class Made:
    """A lake of some rounds, and its bucket, which has changed since."""

    cluster: ProducerCluster
    folder: Path
    spark: "SparkSession"

    def source(self) -> dict[int, dict[bytes, tuple[int, int, bytes]]]:
        return source_rows(
            self.cluster, {vb: self.cluster.high_seqno(vb) for vb in range(VBUCKETS)}
        )


@dataclass(frozen=True)
class Damaged:
    """A copy of it that was damaged."""

    made: Made
    root: Path
    capsys: pytest.CaptureFixture[str]
    other: ProducerCluster | None = None
    """Whose bucket is replicated into it, if not the lake's own."""

    def command(self, name: str, *words: str) -> tuple[int, str]:
        """Run a command as a user does; return its exit code, and what it said of a failure."""
        cluster = self.made.cluster if self.other is None else self.other
        options = [
            *("--set", f"source.seeds={','.join(cluster.seeds)}"),
            *("--set", f"source.username={USER}", "--set", "round.quiet_seconds=0.2"),
            *("--set", f"source.password_file={self.made.folder / PASSWORD_FILE}"),
            *("--set", f"lake.root={self.root}", "--set", "spark.master=local[2]"),
        ]
        self.capsys.readouterr()
        code = main([name, *options, *words])
        return code, self.capsys.readouterr().err

    def require_refused(self, name: str, *words: str) -> str:
        """Require that a command ends with the code of a damaged lake; return its one line."""
        code, said = self.command(name, *words)
        assert (code, said.count("\n")) == (LakeError.exit_code, 1), f"{name}: {code}\n{said}"
        assert said.startswith(f"dcplake {name}: ")
        return said

    def require_exact(self) -> None:
        """Require that a run goes on from here, and that its table is what the bucket holds."""
        assert self.command("run", "--once") == (0, "")
        self.require_replicated()

    def require_replicated(self) -> None:
        """Require that the table is what the bucket holds."""
        location = lake_location(settings_for(self.made.cluster, self.root.parent))
        lake = open_lake(SparkStore(lambda: self.made.spark, location))
        assert lake.location.root == str(self.root)
        assert rows_of(lake, lake.table_sql("docs")) == self.made.source()

    def require_made_again(self, table: str) -> None:
        """Require that a run makes a replica anew when it is deleted, or all in a new place."""
        shutil.rmtree(self.root if table == "changes" else self.root / table)
        self.require_exact()


@pytest.fixture(scope="module")
def made(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=14)) as cluster:
        settings = settings_for(cluster, folder, round={"quiet_seconds": 0.2})
        for number in (0, 1):
            for key in range(number, number + 10):
                cluster.set(b"key-%d" % key, b'{"round": %d}' % number)
            run(settings, once=True, spark=spark)
            lake = lake_of(settings, spark)
            if number == 0:
                for table in (lake.changes, lake.table("docs")):
                    table.set_properties(FREQUENT_CHECKPOINTS)
        for number in range(5):
            cluster.set(b"key-%d" % number, b'"not read yet"')
        cluster.delete(b"key-7")
        yield Made(cluster, folder, spark)


@pytest.fixture
def damaged(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Damaged:
    root = tmp_path / "lake"
    shutil.copytree(made.folder / "lake", root)
    for checksum in root.rglob(".*.crc"):
        checksum.unlink()  # of Hadoop's local file system; no other store has them
    return Damaged(made, root, capsys)


Damage = Callable[[Path], None]


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for place in range(4, len(data) - 4, 7):
        data[place] ^= 0x55
    file.write_bytes(data)


def halved(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def gone(file: Path) -> None:
    file.unlink()


def newest_data(root: Path, table: str) -> Path:
    """Return the file that the newest commit of a table added."""
    added = (root / table).glob("part-*.parquet")
    return max(added, key=lambda file: file.stat().st_mtime_ns)


def log_file(version: int) -> Callable[[Path, str], Path]:
    """Return a commit of a table's log; negative versions count from the newest one."""

    def find(root: Path, table: str) -> Path:
        return sorted((root / table / "_delta_log").glob("*.json"))[version]

    return find


def checkpoint(root: Path, table: str) -> Path:
    return next((root / table / "_delta_log").glob("*.checkpoint*.parquet"))


def last_checkpoint(root: Path, table: str) -> Path:
    return root / table / "_delta_log" / "_last_checkpoint"


RESYNC: Final = "read the bucket again with dcplake resync"
ANOTHER_ROOT: Final = "set lake.root to a new location"
DELETE_TABLE: Final = "delete the table's folder: the next run creates the table again"


def test_a_damaged_file_of_changes(damaged: Damaged) -> None:
    """With the newest positions in it: every command needs it, and a resync does without."""
    flipped(newest_data(damaged.root, "changes"))
    before = sorted((damaged.root / "docs" / "_delta_log").iterdir())
    assert RESYNC in damaged.require_refused("run", "--once")
    for name in ("plan", "status", "verify"):
        said = damaged.require_refused(name)
        assert RESYNC in said and ".parquet: a file of the table is damaged or gone" in said
    assert RESYNC in damaged.require_refused("sql", "SELECT count(*) FROM row_history")
    assert RESYNC in damaged.require_refused("maintain", "--step", "optimize")
    assert sorted((damaged.root / "docs" / "_delta_log").iterdir()) == before
    told = ""
    keeping = ("--set", "policy.dropped=keep", "--set", "filter.since=now")
    for words, options in ((("--vbuckets", "0"), ()), ((), keeping)):
        assert damaged.command("resync", *words) == (0, "")
        code, told = damaged.command("run", "--once", *options)
        assert (code, "resync refused: " in told) == (LakeError.exit_code, True), told
    assert "which collections were dropped" in told and "take both out" in told
    assert "where vbuckets started" in told
    assert damaged.command("resync") == (0, "")
    damaged.require_exact()


def test_a_file_of_changes_that_is_gone(damaged: Damaged) -> None:
    """A resync does without it as without a damaged one."""
    gone(newest_data(damaged.root, "changes"))
    for name, *words in (["run", "--once"], ["status"]):
        said = damaged.require_refused(name, *words)
        assert RESYNC in said and ".parquet: a file of the table is damaged or gone" in said


@pytest.mark.parametrize("damage", [halved, gone])
def test_a_file_of_a_replica(damaged: Damaged, damage: Damage) -> None:
    damage(newest_data(damaged.root, "docs"))
    before = sorted((damaged.root / "docs" / "_delta_log").glob("*.json"))
    for name, *words in (["verify"], ["run", "--once"]):
        assert DELETE_TABLE in damaged.require_refused(name, *words)
    assert sorted((damaged.root / "docs" / "_delta_log").glob("*.json")) == before
    if damage is gone:
        assert DELETE_TABLE in damaged.require_refused("sql", "SELECT max(value) FROM docs")
        damaged.require_made_again("docs")


@pytest.mark.parametrize(("table", "damage"), [("changes", flipped), ("docs", halved)])
def test_a_commit_of_a_log(damaged: Damaged, table: str, damage: Damage) -> None:
    damage(log_file(-1)(damaged.root, table))
    require_unread(damaged, table)
    damaged.require_made_again(table)


@pytest.mark.parametrize("table", ["changes", "docs"])
def test_a_log_with_a_gap(damaged: Damaged, table: str) -> None:
    """Of the commits that are behind the checkpoint, or needed where that is gone too."""
    last_checkpoint(damaged.root, table).unlink()
    checkpoint(damaged.root, table).unlink()
    log_file(-3)(damaged.root, table).unlink()
    require_unread(damaged, table)


@pytest.mark.parametrize("table", ["changes", "docs"])
def test_a_log_that_is_gone_as_a_whole(damaged: Damaged, table: str) -> None:
    """No command takes the table for one that was not made yet."""
    shutil.rmtree(damaged.root / table / "_delta_log")
    said = damaged.require_refused("run", "--once")
    assert (ANOTHER_ROOT if table == "changes" else DELETE_TABLE) in said
    said = damaged.require_refused("verify")
    assert f"table {table}: found no Delta table there" in said


def test_the_newest_commit_of_changes_is_gone(damaged: Damaged) -> None:
    """The table holds a round that the log does not know: nothing goes on from there."""
    log_file(-1)(damaged.root, "changes").unlink()
    for name, *words in (["run", "--once"], ["verify"], ["maintain"]):
        assert REREAD_COMMAND in damaged.require_refused(name, *words)
    for name in ("status", "metrics", "report"):
        assert damaged.command(name) == (0, ""), "there are figures, without a lag of the table"
    assert damaged.command("resync") == (0, "")
    damaged.require_exact()


@pytest.mark.parametrize(
    "damages",
    [
        # Of changes the newest commit is a case of its own.
        {"docs": (log_file(-1), gone), "changes": (checkpoint, gone)},
        {"docs": (last_checkpoint, gone), "changes": (last_checkpoint, flipped)},
        {"docs": (checkpoint, flipped)},
    ],
    ids=["newest commit and checkpoint", "pointers", "checkpoint flipped"],
)
def test_what_logs_can_do_without(
    damaged: Damaged, damages: Mapping[str, tuple[Callable[[Path, str], Path], Damage]]
) -> None:
    """A replica is where its newest commit says; Delta makes up for a checkpoint, or says so."""
    for table, (lost, damage) in damages.items():
        damage(lost(damaged.root, table))
    code, said = damaged.command("run", "--once")
    if code:
        assert (code, said.count("\n")) == (LakeError.exit_code, 1), f"{code}\n{said}"
        [table] = damages
        require_unread(damaged, table)
    else:
        damaged.require_replicated()


def test_a_lake_of_another_version(damaged: Damaged) -> None:
    changes, property_sql = f"delta.`{damaged.root}/changes`", "'dcplake.formatVersion' = '99'"
    damaged.made.spark.sql(f"ALTER TABLE {changes} SET TBLPROPERTIES ({property_sql})")
    before = sorted(damaged.root.rglob("*.json"))
    for name, *words in (["run", "--once"], ["plan"], ["status"], ["verify"], ["resync"]):
        assert "found lake format '99', expected " in damaged.require_refused(name, *words)
    assert sorted(damaged.root.rglob("*.json")) == before


@pytest.mark.parametrize(("vbuckets", "seed"), [(VBUCKETS, 99), (2 * VBUCKETS, 14)])
def test_a_lake_of_another_bucket(damaged: Damaged, vbuckets: int, seed: int) -> None:
    """Of the same name: it was dropped and created again, also with as many vbuckets."""
    before = sorted(damaged.root.rglob("*.json"))
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=vbuckets, seed=seed)) as other:
        other.set(b"key-1", b"of another bucket")
        theirs = replace(damaged, other=other)
        for name, *words in (["run", "--once"], ["verify"]):
            assert "use another " in theirs.require_refused(name, *words)
    assert sorted(damaged.root.rglob("*.json")) == before


@pytest.fixture
def read_only(damaged: Damaged) -> Iterator[Damaged]:
    """A lake that this process cannot write: by its mount, or by its mode where that is no root."""
    if os.geteuid():
        for each in (damaged.root, *damaged.root.rglob("*")):
            each.chmod(each.stat().st_mode & 0o555)
        yield damaged
        for each in (damaged.root, *damaged.root.rglob("*")):
            each.chmod(each.stat().st_mode | 0o200)
        return
    place = str(damaged.root)
    mount = ["mount", "--bind", place, place]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("root that may mount nothing can write whatever there is")
    subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
    yield damaged
    subprocess.run(["umount", "-l", place], check=True)


def test_a_lake_that_cannot_be_written(read_only: Damaged) -> None:
    """Who reads, reads; who writes says at once why not, with and without the lock file."""
    for name, *words in (
        ["status"],
        ["verify"],
        ["tail"],
        ["sql", "SELECT * FROM docs_live"],
    ):
        assert read_only.command(name, *words) == (0, "")
    for name, *words in (
        ["run", "--once"],
        ["run", "--once", "--set", "lake.lock=false"],
        ["resync"],
        ["maintain", "--step", "optimize"],
    ):
        code, said = read_only.command(name, *words)
        assert (code, said.count("\n")) == (SetupError.exit_code, 1), f"{name}: {code}\n{said}"
        assert "expected a lake.root that this user can write" in said or (
            "this user may not read or write it" in said
        )


def require_unread(damaged: Damaged, table: str) -> None:
    """Require that commands refuse a table's log, and that what they say of it helps."""
    helps = ANOTHER_ROOT if table == "changes" else DELETE_TABLE
    for name, *words in (["status"], ["verify"], ["run", "--once"]):
        said = damaged.require_refused(name, *words)
        assert "files of the table's Delta log are damaged or gone" in said
        assert helps in said
