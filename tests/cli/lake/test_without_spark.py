"""Commands that find nothing to write start no Spark: what they ask is in Delta's log."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.cli.main import main
from dcp.lake.run import run as lake_run
from dcp.lake.tables import opening
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
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
    ("metrics",): 'dcplake_lag_seqnos{bucket="default",lake="',
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
    def started(_: object) -> "SparkSession":
        raise AssertionError("Spark was started")

    monkeypatch.setattr(opening, "session", started)
    asked = options if words[0] in ("run", "plan", "doctor") else options[-2:]
    assert main([*words, *asked]) == 0
    assert told in "".join(capsys.readouterr())


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
        monkeypatch.setattr(opening, "session", lambda _, **__: pytest.fail("Spark was started"))
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
