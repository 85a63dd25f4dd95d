"""The recipe of docs/howto/cookbook.md for a table that follows the change data feed."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import StreamingQueryException

from dcp.cli.main import main
from dcp.lake.run.replicate import run
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import settings_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE: Final = (Path(__file__).parents[3] / "docs/howto/cookbook.md").read_text(encoding="utf-8")
HEADING: Final = "\n## Another table, fed with the changes\n"
RECIPE: Final = PAGE.partition(HEADING)[2].partition("\n## ")[0]
LOST_NODE: Final = 1
"""It has the vbuckets 2 and 3 of 4: bob, hal."""


def test_a_table_follows_the_feed_through_a_rollback(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [command, query, stream] = re.findall(r"```\w*\n(.*?)```", RECIPE, re.DOTALL)
    mine = tmp_path / "mine"

    def follow() -> dict[str, str]:
        code = stream.replace("/data/lakes/travel", str(tmp_path / "lake"))
        code = code.replace("/data/mine", str(mine))
        exec(compile(code, "cookbook.md", "exec"), {"spark": spark})  # noqa: S102 -- our own page
        rows = spark.sql(f"SELECT key, document FROM delta.`{mine}`").collect()
        return {row.key: row.document for row in rows}

    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, replicas=1, seed=3)) as cluster:
        settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})

        def put(**documents: str) -> None:
            for key, document in documents.items():
                cluster.set(key.encode(), document.encode())

        put(ada="1", bob="1", gus="1")
        run(settings, once=True, spark=spark)
        named = command.replace("--config travel.toml", f"--lake {settings.lake.root}")
        program, *words = shlex.split(named)
        assert program == "dcplake" and named != command and main(words) == 0
        assert follow() == {"ada": "1", "bob": "1", "gus": "1"}

        cluster.wait_until_replicated()
        cluster.pause_replication()
        put(ada="2", bob="2", hal="2")
        cluster.delete(b"gus")
        run(settings, once=True, spark=spark)
        put(ada="3")
        run(settings, once=True, spark=spark)  # two versions for one batch
        assert follow() == {"ada": "3", "bob": "2", "hal": "2"}

        cluster.failover(LOST_NODE)
        cluster.resume_replication()
        run(settings, once=True, spark=spark)
        assert follow() == {"ada": "3", "bob": "1"}

    capsys.readouterr()
    assert main(["sql", "--lake", settings.lake.root, query]) == 0
    shown = [tuple(line.split()) for line in capsys.readouterr().out.splitlines()[2:]]
    assert shown == [
        ("3", "update_postimage", "ada", "2"),
        ("3", "update_postimage", "bob", "2"),
        ("3", "delete", "gus", "1"),
        ("3", "insert", "hal", "2"),
        ("4", "update_postimage", "ada", "3"),
        ("5", "update_postimage", "bob", "1"),
        ("5", "delete", "hal", "2"),
    ]
    rows = spark.readStream.format("delta").option("startingVersion", 1)
    plain = rows.load(str(tmp_path / "lake" / "docs")).writeStream.format("noop")
    plain = plain.option("checkpointLocation", str(tmp_path / "plain"))
    with pytest.raises(StreamingQueryException, match="skipChangeCommits"):
        plain.trigger(availableNow=True).start().awaitTermination()
