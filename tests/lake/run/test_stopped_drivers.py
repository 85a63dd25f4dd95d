"""P7: a driver is stopped (SIGSTOP) wherever it is, another takes over, and the first one wakes.

Stopped are the driver, its JVM and their Python workers, while a statement runs or between two.
These lakes have no lock file, as those in object stores have none: only the fences of commits
protect them. A stopped process looks at nothing meanwhile: it wakes with a view of the lake, and
with connections, of long ago.
"""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from dcp.errors import FencedError
from dcp.lake.config.settings import Settings
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.run.replicate import run
from dcp.lake.tables.lake_tables import DOCS, cleaned_round
from tests.lake.driver_host import DriverHost, Ended
from tests.lake.interrupted_lakes import InterruptedLakes, commits_in, data_files_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FENCED: Final = FencedError.exit_code
STOPPED_SECONDS: Final = 50.0
"""Longer than `IDLE_SECONDS`, and than Spark's time limits (`QUICKLY_GIVEN_UP`)."""


@dataclass(frozen=True)
class Scene:
    lakes: InterruptedLakes
    host: DriverHost


@pytest.fixture
def scene(interrupted_lakes: InterruptedLakes, host: DriverHost) -> Scene:
    return Scene(interrupted_lakes, host)


def require_fenced(ended: Ended) -> None:
    assert ended.code == FENCED, ended.output
    assert "another driver" in ended.output or "is committed already" in ended.output
    assert "Traceback" not in ended.output


# --- between two statements


def test_stopped_between_two_statements(scene: Scene) -> None:
    """Its round is durable, and others went on from there."""
    lakes, host = scene.lakes, scene.host
    settings = lakes.pending()
    lakes.write()
    [paused] = host.begin(lakes.words("run", settings, "--once"), ["round.committed"])
    host.wait_for(paused)
    host.stop()
    lakes.take_over(settings)
    host.wake()
    ended = host.ended([paused])
    assert ended.code == 0, ended.output
    lakes.require_exact(settings)


# --- inside a round


def test_stopped_while_a_worker_receives_until_every_time_limit_is_over(scene: Scene) -> None:
    """The node closes the connections, and Spark must not give its own executor up for lost."""
    lakes, host = scene.lakes, scene.host
    settings = lakes.pending()
    lakes.write()
    [paused] = host.begin(lakes.words("run", settings, "--once"), ["round.received"])
    host.wait_for(paused)
    host.stop()
    stopped_at = time.monotonic()
    assert host.statement == "append changes"
    lakes.take_over(settings)
    time.sleep(max(0.0, STOPPED_SECONDS - (time.monotonic() - stopped_at)))
    host.wake()
    require_fenced(host.ended([paused]))
    lakes.require_exact(settings)


def test_stopped_while_a_round_is_written(scene: Scene) -> None:
    lakes, host = scene.lakes, scene.host
    settings = lakes.pending()
    for _ in range(5):  # a busy machine may stop it when so small a round is committed
        lakes.write()
        if is_stopped_in(
            scene, settings, "append changes", writing="changes", words=("run", "--once")
        ):
            break
        host.wake()
        host.ended()
    else:
        pytest.fail("the round was committed before it was stopped, each time")
    lakes.take_over(settings)
    host.wake()
    require_fenced(host.ended())
    lakes.require_exact(settings)


# --- inside an apply


def test_stopped_inside_a_merge(scene: Scene) -> None:
    lakes, host = scene.lakes, scene.host
    settings = lakes.pending()
    stop_in(scene, settings, "MERGE docs", writing="docs", words=("run", "--once"))
    lakes.take_over(settings)
    host.wake()
    require_fenced(host.ended())
    lakes.require_exact(settings)


def test_stopped_inside_the_audit_of_an_apply(scene: Scene) -> None:
    """Its apply is durable, so another may write its audit; that is there once."""
    lakes, host = scene.lakes, scene.host
    settings = lakes.pending()
    stop_in(scene, settings, "INSERT undone", words=("run", "--once"))
    lakes.take_over(settings)
    host.wake()
    ended = host.ended()
    assert ended.code == 0, ended.output
    lakes.require_exact(settings)
    lake = lakes.lake(settings)
    rows = lake.table(AUDIT_TABLE).rows("version, vbucket, key", "true")
    assert len({tuple(row.values()) for row in rows}) == len(rows)


# --- inside maintenance


@pytest.mark.parametrize(
    ("step", "statement"),
    [
        ("clean", "DELETE changes"),
        ("optimize", "OPTIMIZE docs"),
    ],
)
def test_stopped_inside_maintenance(scene: Scene, step: str, statement: str) -> None:
    lakes, host = scene.lakes, scene.host
    settings = lakes.old()
    stop_in(scene, settings, statement, words=("maintain", "--step", step))
    lakes.take_over(settings)
    lakes.maintain(settings, ["clean", "vacuum"] if step == "clean" else [step])
    noted = cleaned_round(lakes.lake(settings), DOCS)
    host.wake()
    ended = host.ended()
    assert "Traceback" not in ended.output
    # Its statement had committed when it was stopped, or lost to those that took over.
    assert ended.code == 0 or f"left {step} " in ended.output, ended.output
    assert ended.code in (0, FENCED), ended.output
    assert cleaned_round(lakes.lake(settings), DOCS) == noted
    if step == "clean":  # whoever creates the table again must not take the log for whole
        shutil.rmtree(Path(settings.lake.root) / "docs")
        run(settings, once=True, spark=lakes.spark)
    lakes.require_newest_exact(settings)


def test_a_stopped_driver_keeps_its_lock_and_goes_on(scene: Scene) -> None:
    lakes, host = scene.lakes, scene.host
    settings = lakes.pending()
    settings = replace(settings, lake=replace(settings.lake, lock=True))
    stop_in(scene, settings, "MERGE docs", words=("run", "--once"))
    with pytest.raises(FencedError, match=r'another driver works on it .*"pid"'):
        run(settings, once=True, spark=lakes.spark)
    host.wake()
    ended = host.ended()
    assert ended.code == 0, ended.output
    lakes.require_exact(settings)


def stop_in(
    scene: Scene,
    settings: Settings,
    statement: str,
    *,
    words: tuple[str, ...],
    writing: str | None = None,
) -> None:
    """Run a command until it is in a statement (and writes data files), and stop it there."""
    assert is_stopped_in(scene, settings, statement, words=words, writing=writing)


def is_stopped_in(
    scene: Scene,
    settings: Settings,
    statement: str,
    *,
    words: tuple[str, ...],
    writing: str | None = None,
) -> bool:
    """Do so; return whether it stands in the statement and has not committed.

    What the statement does for a while is drawn. That it is stopped is looked at afterwards, when
    nothing moves any more.
    """
    lakes, host = scene.lakes, scene.host
    root, table = settings.lake.root, statement.split()[1]
    files = data_files_in(root, writing) if writing else 0
    host.begin(lakes.words(words[0], settings, *words[1:]))
    host.wait_until(lambda: host.statement == statement, statement)
    commits = commits_in(root, table)
    if writing:
        host.wait_until(lambda: data_files_in(root, writing) > files, f"data of {statement}")
    host.stop()
    return host.statement == statement and commits_in(root, table) == commits
