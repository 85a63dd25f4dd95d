"""Commands that find nothing to write start no Spark: what they ask is in Delta's log."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.cli.main import main
from dcp.lake.log.control import BACKFILL, Action, ActionState, Control
from dcp.lake.run import run as lake_run
from dcp.lake.tables import opening
from dcp.lake.tables.lock import locked
from dcp.lake.tables.tables import LakeLocation, open_lake
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from tests.client.drained import PATIENCE_SECONDS, wait_for
from tests.lake.receiving import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DOCUMENTS = 50
COMMANDS = {
    ("run", "--once"): "no round: after round 1 no vbucket is behind",
    ("apply",): "nothing to apply",
    ("plan",): "no round: after round 1 no vbucket is behind",
    ("status",): f"docs: version 1, {DOCUMENTS} documents, holds that round",
    ("metrics",): 'dcplake_lag_seqnos{bucket="default",table="docs"} 0.0\n',
    ("rollbacks",): "no rollback so far",
    ("cut",): "docs` VERSION AS OF 1;\n",
    ("tail", "--lines", "1"): '{"n": 1}',
    ("doctor",): "lake: of this bucket",
    ("pause",): "no further round begins until dcplake resume",
    ("resume",): "rounds begin again",
}


@pytest.fixture(scope="module")
def options(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A bucket and its lake, as options of the commands."""
    folder = tmp_path_factory.mktemp("idle")
    with ProducerCluster(ClusterSettings(vbuckets=4, seed=7)) as cluster:
        for number in range(DOCUMENTS):
            cluster.set(b"key-%d" % number, b'{"n": 1}')
        settings = settings_for(cluster, folder)
        lake_run.run(settings, once=True, spark=spark)
        values = {
            "source.seeds": ",".join(settings.source.seeds),
            "source.username": settings.source.username,
            "source.password_file": settings.source.password_file,
            "lake.root": settings.lake.root,
        }
        yield [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.parametrize(("words", "told"), COMMANDS.items())
def test_a_command_starts_no_spark(
    options: list[str],
    words: tuple[str, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
    asked = options if words[0] in ("run", "plan", "doctor") else options[-2:]
    assert main([*words, *asked]) == 0
    said = "".join(capsys.readouterr())
    assert told in re.sub(r'(?<=,)lake="[0-9a-f]+",', "", said)


def test_an_idle_run_after_a_rollback_starts_no_spark(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = ClusterSettings(nodes=2, vbuckets=2, seed=9, replica_lag_seqnos=1)
    with ProducerCluster(bucket) as cluster:
        for number in range(8):
            cluster.set(b"key-%d" % number, b"1")
        settings = settings_for(cluster, tmp_path)
        lake_run.run(settings, once=True, spark=spark)
        cluster.failover(0)
        lake_run.run(settings, once=True, spark=spark)
        assert main(["rollbacks", "--lake", settings.lake.root]) == 0
        assert "key-" in capsys.readouterr().out, "something was taken back"
        monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
        lake_run.run(settings, once=True)


def test_the_lake_of_another_bucket_is_none_of_ours(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProducerCluster(ClusterSettings(vbuckets=4, seed=8)) as other:
        seeds = ["--set", f"source.seeds={','.join(other.seeds)}"]
        assert main(["doctor", *options, *seeds]) == 7
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("failed   lake ")
    assert "it was made anew, use another lake for it\n" in said.err


@pytest.mark.parametrize(
    "command", ["doctor", "plan", "plan --backfill", "run --once", "verify", "backfill"]
)
def test_a_bucket_that_the_cluster_does_not_have_is_not_the_lakes(
    options: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), *options, "--set", "source.bucket=nosuch"]) == 7
    said = capsys.readouterr().err
    assert "this lake holds bucket 'default', found 'nosuch' (source.bucket)" in said
    assert said.count("\n") == 1


def test_asking_another_driver_for_a_backfill_and_cancelling_it_start_no_spark(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "session", lambda *_, **__: pytest.fail("Spark was started"))
    assert main(["backfill", "--cancel", *options]) == 2
    assert "found no backfill that is open" in capsys.readouterr().err
    root = options[-1].removeprefix("lake.root=")
    lake = open_lake(lambda: pytest.fail("Spark was started"), LakeLocation(root=root))
    control = Control(lake)

    def open_backfills() -> list[Action]:
        return [each for each in control.actions() if each.is_open and each.action == BACKFILL]

    with ThreadPoolExecutor(1) as beside, locked(Path(root), "a driver", makes_lake=False):
        asked = beside.submit(main, ["backfill", "--vbuckets", "0", *options])
        wait_for("a request", lambda: bool(open_backfills()))
        assert main(["backfill", "--cancel", *options]) == 0
        assert "ends it before another round" in capsys.readouterr().out
        [action] = open_backfills()
        assert action.is_to_be_cancelled
        control.write(action, ActionState.CANCELLED, detail="vbucket 0 as it was")
        assert asked.result(PATIENCE_SECONDS) == 130
    assert "somebody cancelled it; vbucket 0 as it was" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "plan"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("filter.since=now", "found now, and lake "),
        ("filter.include_collections=inventry", "found 'inventry', expected scopes or collections"),
        ("policy.dropped_collections=gon=soft", "found 'gon', expected scopes or collections"),
    ],
)
def test_the_doctor_refuses_what_a_run_refuses(
    options: list[str],
    command: str,
    setting: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([command, *options, "--set", setting]) == 2
    assert said in capsys.readouterr().err
