"""The task board: tasks write samples of themselves into files, for `dcplake top` and metrics.

Each task has one small file in the folder of ``board_folder.py``. A thread of the task replaces the
whole file at most every half second, also while Spark asks for no rows. The board only informs: if
it cannot be written, the task goes on without it.

A file is stale if its task is gone or the file is older than 30 s. Machines that share the folder
need not agree on the time: the clock of the file system counts. Readers and starting tasks remove
stale files of their own machine, and those that are an hour old.
"""

import json
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import monotonic, time
from typing import Final

import psutil

from dcp.errors import ConfigError
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.lake.task_board.task_stats import TaskStats
from dcp.records import Record
from dcp.wire.json_tree import json_tree


class TaskWatcher:
    """Adds rates to a task's sample, and the time that full windows waited for each stage.

    The board's thread takes samples, and the task's own at its end. They take turns, so each moment
    counts once.
    """

    def __init__(self, stats: Callable[[], TaskStats]) -> None:
        """``stats``, without rates and times, must be cheap and change nothing."""
        self._told = stats
        self._began = self._seen_at = monotonic()
        self._rows = 0
        self._taken_bytes = 0
        self._bytes_of: dict[str, int] = {}
        self._bottleneck_seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def stats(self) -> TaskStats:
        """Take a sample, from any thread."""
        with self._lock:
            return self._stats()

    def _stats(self) -> TaskStats:
        told, now = self._told(), monotonic()
        seconds = max(1e-6, now - self._seen_at)
        for bottleneck in {each.bottleneck for each in told.connections if each.bottleneck}:
            before = self._bottleneck_seconds.get(bottleneck, 0.0)
            self._bottleneck_seconds[bottleneck] = before + seconds
        connections = tuple(
            replace(
                each,
                bytes_per_second=(each.received_bytes - self._bytes_of.get(each.name, 0)) / seconds,
            )
            for each in told.connections
        )
        self._bytes_of = {each.name: each.received_bytes for each in connections}
        new_bytes, self._taken_bytes = told.bytes - self._taken_bytes, told.bytes
        new_rows, self._rows, self._seen_at = told.rows - self._rows, told.rows, now
        return replace(
            told,
            seconds=now - self._began,
            rows_per_second=new_rows / seconds,
            bytes_per_second=new_bytes / seconds,
            connections=connections,
            bottleneck_seconds=dict(self._bottleneck_seconds),
        )


_LOGGER = logging.getLogger(__name__)

WRITE_SECONDS: Final = 0.5
STALE_SECONDS: Final = 30.0
ABANDONED_SECONDS: Final = 3600.0
"""After this time a file is removed even if another machine wrote it, or it cannot be read."""
_SUFFIX: Final = ".task.json"
_UNFINISHED: Final = ".task.new"
_LARGEST_BYTES: Final = 4 * 2**20


@contextmanager
def shown_on_board(board: BoardFolder, name: str, stats: Callable[[], TaskStats]) -> Iterator[None]:
    """Show a task on its lake's board while it runs. The board's thread calls ``stats``."""
    if (file := _new_file(board, name)) is None:
        yield
        return
    ended = threading.Event()
    writer = threading.Thread(
        target=_keep_written, args=(file, stats, ended), name="dcp-task-board", daemon=True
    )
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join(2 * WRITE_SECONDS)
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _new_file(board: BoardFolder, name: str) -> Path | None:
    """Return the path of a task's file in a swept folder; None if there can be no folder."""
    try:
        folder = board.make()
        _sweep(folder)
    except (ConfigError, OSError) as error:
        _LOGGER.warning("task board: %s: what this task sees is shown nowhere", error)
        return None
    return folder / f"{name}-{os.getpid()}{_SUFFIX}"


def _keep_written(file: Path, stats: Callable[[], TaskStats], ended: threading.Event) -> None:
    new = file.with_suffix(".new")
    while not ended.wait(WRITE_SECONDS):
        try:
            new.write_text(json.dumps(stats().to_json()))
            if ended.is_set():
                new.unlink()
            else:
                new.replace(file)
        except Exception as error:  # nobody's work may suffer from being watched
            _LOGGER.debug("task board %s: %r", file, error)


@dataclass(frozen=True, slots=True)
class BoardFigures(Record):
    """The task board of a lake at one instant."""

    at: datetime
    tasks: tuple[TaskStats, ...] = ()
    """Running tasks, as far as this machine sees them."""


def read_board(board: BoardFolder) -> list[TaskStats]:
    """Return the newest statistics of a lake's tasks, by name.

    Raises:
        ConfigError: the folder is not private.
    """
    if not board.folder.is_dir():
        return []
    board.require_private()
    return sorted(_sweep(board.folder), key=lambda stats: stats.task)


def _sweep(folder: Path) -> list[TaskStats]:
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    unfinished = list(folder.glob(f"*{_UNFINISHED}"))
    if not files and not unfinished:
        return []
    now = _time_of(folder)
    all_stats = []
    for file in files:
        # Its task has just removed it, it is not ours to read, or its pid is none.
        with suppress(OSError, OverflowError):
            if not file.is_file():  # opening a pipe would wait for its writer
                continue
            stats, age_seconds = _read(file, now)
            is_of_here = stats is not None and stats.host == socket.gethostname()
            may_run = stats is not None and (not is_of_here or psutil.pid_exists(stats.pid))
            if stats is not None and may_run and age_seconds <= STALE_SECONDS:
                all_stats.append(stats)
            elif age_seconds > ABANDONED_SECONDS or is_of_here:
                file.unlink(missing_ok=True)
    for file in unfinished:
        with suppress(OSError):  # its task has just finished it
            if now - file.stat().st_mtime > STALE_SECONDS:
                file.unlink(missing_ok=True)  # a running task writes another one at once
    return all_stats


def _time_of(folder: Path) -> float:
    """Return the present time of the folder's file system; our own time if we may not write
    there.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="now-", suffix=_UNFINISHED) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time()


def _read(file: Path, now: float) -> tuple[TaskStats | None, float]:
    with file.open("rb") as opened:
        age_seconds = now - os.fstat(opened.fileno()).st_mtime
        try:
            return TaskStats.from_json(json_tree(opened.read(_LARGEST_BYTES))), age_seconds
        except ValueError:
            return None, age_seconds
