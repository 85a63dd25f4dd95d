"""``dcplake demo``: the whole product in a minute, on real documents and on this machine alone.

A producer process, 28,000 airports, replication, a day's changes, replication again; then two
questions in SQL, one of them about the past. The second act is in ``dcp/cli/demo``.
"""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from typer import Option

from dcp.cli.demo.airport_changes import Changes, Document, airports, changes, documents
from dcp.cli.demo.second_act import say_in_order, second_act
from dcp.cli.demo.serve_process import USER, DemoProducer
from dcp.cli.displays.run_output import replicate_aloud
from dcp.cli.terminal.output import say
from dcp.cli.terminal.progress import progress
from dcp.cli.terminal.table import table
from dcp.errors import ConfigError

if TYPE_CHECKING:
    from dcp.client.kv.kv_client import KvClient
    from dcp.lake.config.settings import Settings
    from dcp.lake.tables.lake_tables import LakeTables

_MARKER: Final = ".dcplake-demo"
_EXPIRY_WAIT_SECONDS: Final = 15.0
_MASTER: Final = "local[2]"
_FOR_FEW_ROWS: Final = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of Spark: it writes and compiles no Java for rows, and a stage is no job of its own."""
_QUESTION: Final = """\
SELECT document:country::string AS country, count(*) AS airports
FROM {relation} GROUP BY country ORDER BY airports DESC, country LIMIT 10"""


def run(
    *,
    folder: Annotated[Path, Option(metavar="FOLDER", help="where to work")] = Path("demo-lake"),
    seed: Annotated[int, Option(min=0, help="which airports change")] = 1,
) -> int:
    """Show it."""
    from dcp.client.kv.kv_client import KvClient
    from dcp.lake.adapters.opening import opened_lake, session
    from dcp.lake.config.settings import Settings, SparkSettings
    from dcp.lake.query.plain_names import show_for_queries
    from dcp.lake.spark.jars import delta_jars
    from dcp.lake.spark.java import find_java_home

    find_java_home()
    delta_jars()
    _make_fresh(folder)
    stored = airports()
    day = changes(stored, updates=400, deletes=150, expiries=12, seed=seed)
    begin = time.monotonic()
    starting = DemoProducer(folder / "producer.log")
    os.environ["DCPLAKE_PASSWORD"] = starting.password
    spark = Settings(spark=SparkSettings(master=_MASTER, conf=_FOR_FEW_ROWS))
    with ThreadPoolExecutor(1) as beside:
        spark_starts = beside.submit(session, spark)  # as the producer does, and stores airports
        with starting as producer:
            say(f"producer: bucket {producer.bucket!r} on {', '.join(producer.seeds)}, 64 vbuckets")
            settings = _settings(folder, producer)
            with KvClient(producer.seeds, USER, producer.password, producer.bucket) as client:
                with progress("airports stored", len(stored), "documents") as advance:
                    client.set(_counted(documents(stored), advance))
                spark_starts.result()
                first = replicate_aloud("first replication", settings)
                _change(client, day)
                second = replicate_aloud("second replication", settings)
            before, after = first.applied[-1].version, second.applied[-1].version
            with opened_lake(settings) as lake:
                show_for_queries(lake)
                _ask(lake, before, after)
                second_act(producer, settings, lake, day.untouched(stored), sound=after, seed=seed)
    _close(folder, time.monotonic() - begin)
    return 0


def _make_fresh(folder: Path) -> None:
    """Make an empty folder of the demo's own; one of an earlier demo is emptied first."""
    if folder.exists():
        if not (folder / _MARKER).exists():
            raise ConfigError(
                f"--folder {folder}: found a folder that is not of an earlier demo, expected "
                "one that does not exist yet"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / _MARKER).touch()


def _counted(every: Iterable[Document], advance: Callable[[int], None]) -> Iterator[Document]:
    for document in every:
        advance(1)
        yield document


def _settings(folder: Path, producer: DemoProducer) -> "Settings":
    from dcp.lake.config.settings_load import load_settings

    config = folder / "dcplake.toml"
    seeds = ", ".join(f'"{seed}"' for seed in producer.seeds)
    conf = "\n".join(f'"{name}" = "{value}"' for name, value in _FOR_FEW_ROWS.items())
    config.write_text(
        f'[source]\nseeds = [{seeds}]\nbucket = "{producer.bucket}"\nusername = "{USER}"\n'
        '\n[lake]\nroot = "lake"\n'
        f'\n[spark]\nmaster = "{_MASTER}"\n'
        "\n# For so few rows Spark would take longer to compile code than to read them.\n"
        f"[spark.conf]\n{conf}\n"
    )
    return load_settings(config)


def _change(client: "KvClient", day: Changes) -> None:
    say()
    client.set(day.updated)
    client.delete(day.deleted)
    client.touch(day.expiring, 1)
    end = time.monotonic() + _EXPIRY_WAIT_SECONDS
    while client.get(day.expiring) and time.monotonic() < end:
        time.sleep(0.2)
    say(
        f"meanwhile: {len(day.updated)} airports updated, {len(day.deleted)} deleted, "
        f"{len(day.expiring)} expired"
    )


def _ask(lake: "LakeTables", before: int, after: int) -> None:
    from dcp.lake.query.views_sql import documents_variant_sql

    old = f"({documents_variant_sql(f'docs VERSION AS OF {before}')})"
    say_in_order(
        [
            lambda: _by_country(
                lake, f"Airports by country, now (docs version {after})", "documents_variant"
            ),
            lambda: _by_country(
                lake, f"The same before the changes (docs VERSION AS OF {before})", old
            ),
            lambda: _versions(lake),
        ]
    )


def _by_country(lake: "LakeTables", title: str, relation: str) -> str:
    from dcp.lake.query.answers import answer

    found = answer(lake.spark, _QUESTION.format(relation=relation))
    return f"{title}\n{table(found.columns, [tuple(row) for row in found.collect()])}"


def _versions(lake: "LakeTables") -> str:
    from dcp.lake.query.answers import answer

    history = answer(lake.spark, "DESCRIBE HISTORY docs").orderBy("version")
    shown = history.selectExpr(
        "version",
        "operation",
        "coalesce(operationMetrics['numTargetRowsInserted'], '') AS inserted",
        "coalesce(operationMetrics['numTargetRowsUpdated'], '') AS updated",
        "coalesce(operationMetrics['numTargetRowsDeleted'], '') AS deleted",
    )
    return f"Versions of docs\n{table(shown.columns, [tuple(row) for row in shown.collect()])}"


def _close(folder: Path, seconds: float) -> None:
    program = Path(sys.executable).with_name("dcplake")
    if program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    dcplake, lake = shlex.quote(str(program)), shlex.quote(str(folder / "lake"))
    say()
    say(f"Done in {seconds:.0f} s. The tables are in {lake}; go on with:")
    say(f'  {dcplake} sql --lake {lake} "SELECT key, document FROM documents LIMIT 5"')
    say(f'  {dcplake} sql --lake {lake} "SELECT count(*) FROM docs VERSION AS OF 1"')
    say(f"  {dcplake} rollbacks --lake {lake}")
    say(f"  {dcplake} tail --lake {lake}")
    say(f"  {dcplake} status --lake {lake}")
