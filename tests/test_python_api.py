"""``dcplake.open()``: docs/howto/python.md word for word, exact numbers, whose Spark is stopped."""

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pytest

import dcplake
from dcp.errors import ConfigError, LakeError
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import PASSWORD, PASSWORD_FILE, USER
from tests.quick_spark import QUICK_CONF, spark_conf_toml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = (ROOT / "docs" / "howto" / "python.md").read_text(encoding="utf-8")
EXAMPLES: Final = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HIGH: Final = 2**63
"""The first seqno, and CAS, of vbucket 0: no signed integer and no double holds the next ones."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(vbuckets=4, users={USER: PASSWORD}, seed=1)
    with ProducerCluster(settings) as cluster:
        cluster.start_vbucket_at(0, HIGH, HIGH)
        for number in range(100):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number)
        yield cluster


@pytest.fixture(scope="module")
def folder(cluster: ProducerCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of travel.toml, and of the lake that it names."""
    folder = tmp_path_factory.mktemp("api")
    (folder / PASSWORD_FILE).write_text(PASSWORD)
    (folder / "travel.toml").write_text(
        f"[source]\nseeds = {cluster.seeds!r}\nusername = '{USER}'\n"
        f"password_file = '{folder / PASSWORD_FILE}'\n"
        f"[lake]\nroot = '{folder / 'lake'}'\n[spark]\nmaster = 'local[2]'\n"
        f"{spark_conf_toml(QUICK_CONF)}"
    )
    return folder


@pytest.fixture(scope="module")
def names(
    cluster: ProducerCluster, folder: Path, spark: "SparkSession"
) -> Iterator[dict[str, Any]]:
    """The names that the page's examples leave, run one after the other; then one more round."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for example in EXAMPLES:
            exec(compile(example, "python.md", "exec"), found)  # noqa: S102 -- it is our own page
    found["counted"] = found["documents"].count()
    cluster.set(b"later", b"1")
    found["planned"] = found["lake"].plan()
    found["second"] = found["lake"].run()
    yield found
    spark.sql("USE spark_catalog.default")


def test_the_examples_of_the_page_do_what_they_say(
    names: dict[str, Any], spark: "SparkSession"
) -> None:
    assert len(EXAMPLES) == 9
    assert sum(each.rows for each in names["report"].rounds) == 100
    assert names["frame"].height == 100 and names["newest"].height == 10
    assert set(names["newest"].columns) == {"key", "value"}
    assert names["table"].column_names == ["key", "seqno", "cas", "value"]
    assert names["counted"] == 100
    assert names["tables"].keys() == names["cut"].versions.keys() == {"docs", "changes"}
    assert not names["replication"].is_alive()
    assert spark.range(3).count() == 3, "a session that somebody else started goes on"
    assert isinstance(names["planned"], RoundPlan)
    assert names["second"].applied[0].inserted == 1
    assert names["lake"].verify(vbuckets={0}).result == "equal"


def test_results_are_shown_as_the_commands_show_them(names: dict[str, Any]) -> None:
    lake, report = names["lake"], names["report"]
    words = str(report).splitlines()
    assert words[0].startswith("round 1 (changes version ") and "100 rows" in words[0]
    assert words[-1].startswith("applied: docs version ")
    assert str(type(report)()) == "nothing to do: the lake has what the cluster holds"
    shown = [
        report,
        report.rounds[0],
        names["planned"],
        lake.status(),
        names["cut"],
        names["found"],
    ]
    for each in shown:
        assert "object at" not in str(each) and not str(each).startswith(f"{type(each).__name__}(")
        assert each._repr_html_() == f"<pre>{html.escape(str(each))}</pre>"


def test_unsigned_numbers_are_exact_everywhere(
    names: dict[str, Any], cluster: ProducerCluster
) -> None:
    held = cluster.state_at(0, cluster.high_seqno(0))
    uuid = cluster.failover_log(0).current_uuid
    expected = {
        key.decode(): (document.seqno, document.cas, uuid) for key, document in held.items()
    }
    assert expected and all(seqno > HIGH and cas > HIGH for seqno, cas, _ in expected.values())
    lake, columns = names["lake"], ["key", "seqno", "cas", "vb_uuid"]

    def told(rows: list[Any]) -> dict[str, tuple[int, ...]]:
        return {key: (int(seqno), int(cas), int(vb)) for key, seqno, cas, vb in rows}

    arrow = lake.to_arrow(columns=columns, where="vbucket = 0")
    assert told([tuple(row.values()) for row in arrow.to_pylist()]) == expected
    polars = lake.to_polars(columns=columns, where="vbucket = 0")
    assert told(polars.rows()) == expected
    assert told(polars.with_columns(pl.col(columns[1:]).cast(pl.UInt64)).rows()) == expected
    frame = lake.to_dataframe().where("vbucket = 0").select(*columns)
    assert told([tuple(row) for row in frame.collect()]) == expected


def test_spark_reads_a_lake_that_nothing_else_can(
    names: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "100%"  # delta-rs takes that for another name
    place.symlink_to(folder / "lake")
    part: dict[str, Any] = {"columns": ["key", "cas"], "where": "vbucket < 2", "version": 1}
    expected = names["lake"].to_arrow(**part).sort_by("key")
    assert expected.num_rows
    assert dcplake.open(place).to_arrow(**part).sort_by("key").equals(expected)


def test_what_is_not_there_is_named(names: dict[str, Any], tmp_path: Path) -> None:
    lake = names["lake"]
    with pytest.raises(ConfigError, match=r"found no table 'doc', expected one of docs, changes$"):
        lake.to_arrow("doc")
    with pytest.raises(ConfigError, match=r"docs: found no columns \['ky'\], expected one of vbu"):
        lake.to_polars(columns=["key", "ky"])
    with pytest.raises(ConfigError, match=r"^SQL: .*`nothing` cannot be resolved"):
        lake.to_arrow(where="nothing = 1")
    for read in (lake.to_arrow, lake.to_dataframe):
        with pytest.raises(
            ConfigError, match=r"^SQL: .* version 99\. Available versions: \[0, 2\]"
        ):
            read("docs", version=99)
    with pytest.raises(ConfigError, match=r"^SQL: .*`doc` cannot be found"):
        lake.to_dataframe("doc")
    with pytest.raises(ConfigError, match=r"found datetime.*, expected a round, or a time with"):
        lake.cut(as_of=datetime(2026, 1, 1))  # noqa: DTZ001 -- that is what is wrong with it
    with pytest.raises(ConfigError, match="expected a round, or a time"):
        lake.cut(1, as_of=datetime.now(UTC))
    with pytest.raises(ConfigError, match=r"option lake\.rot: unknown key 'rot'"):
        dcplake.open(settings={"lake.rot": "x"})
    nowhere = dcplake.open(tmp_path / "nowhere")
    with pytest.raises(LakeError, match="found no Delta table there"):
        nowhere.status()


PROGRAM: Final = """
import psutil, sys
import dcplake
from pyspark import SparkContext
from pyspark.sql import SparkSession

def jvms():
    return [each for each in psutil.Process().children(True) if each.name() == "java"]

config = sys.argv[1]
lake = dcplake.open(config=config)
assert lake.status().round == 2 and lake.cut().round == 2 and lake.plan().round == 3
assert lake.to_arrow().num_rows == lake.to_polars().height == 101
assert lake.tables() == ("docs", "changes")
assert "pyspark" in sys.modules and not jvms(), "reading started Java"
lake.close()  # nothing to stop

with lake:
    assert lake.to_dataframe().count() == 101
    mine = SparkSession.active()
    with dcplake.open(config=config) as guest:
        assert guest.to_dataframe().count() == 101
    assert mine.range(3).count() == 3, "the guest stopped what it had not started"
    [jvm] = jvms()
assert SparkContext._active_spark_context is None and not jvms()

with lake:
    assert lake.to_dataframe().columns, "Spark could not be started again"
    assert len(jvms()) == 1
assert not jvms()
print("done")
"""


def test_spark_is_stopped_by_who_started_it(
    names: dict[str, Any], cluster: ProducerCluster, folder: Path
) -> None:
    cluster.set(b"key-of-round-3", b"1")
    command = [sys.executable, "-c", PROGRAM, str(folder / "travel.toml")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
