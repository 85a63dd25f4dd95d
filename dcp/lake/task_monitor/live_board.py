"""Tasks write what they see into files, and whoever wants to know reads them: the live board.

Each task has one small file in the folder of ``live_place.py``, replaced as a whole at most every
half second by a thread of its own, also while Spark does not ask for rows. It shows how things
stand and decides nothing: a board that cannot be written is left out.

A file whose task is gone, or that is older than 30 s, is no news. Machines that share the folder
need not agree on the time: the age is that of the file, by the clock of its file system. Who finds
one removes it, if it is of the same machine or an hour old: who looks, and each task that begins,
since perhaps nobody ever looks.
"""

import json
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import time
from typing import Final

import psutil

from dcp.errors import ConfigError
from dcp.lake.task_monitor.live_place import LivePlace
from dcp.lake.task_monitor.task_stats import TaskStats
from dcp.wire.json_tree import json_tree

_log = logging.getLogger(__name__)

WRITE_SECONDS: Final = 0.5
STALE_SECONDS: Final = 30.0
ABANDONED_SECONDS: Final = 3600.0
"""After so long a file is removed even if another machine wrote it, or it cannot be read."""
_SUFFIX: Final = ".task.json"
_UNFINISHED: Final = ".task.new"
_LARGEST_BYTES: Final = 4 * 2**20


class BoardWriter:
    def __init__(self, folder: Path, name: str, stats: Callable[[], TaskStats]) -> None:
        """The writer's thread calls ``stats``."""
        self._file = folder / f"{name}-{os.getpid()}{_SUFFIX}"
        self._stats = stats
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="dcp-live-board", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(2 * WRITE_SECONDS)
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _main(self) -> None:
        while not self._ended.wait(WRITE_SECONDS):
            try:
                self._write()
            except Exception as error:  # nobody's work may suffer from being watched
                _log.debug("live board %s: %r", self._file, error)

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._stats().to_json()))
        if self._ended.is_set():
            new.unlink()
        else:
            new.replace(self._file)


@contextmanager
def live_board(
    place: LivePlace | None, name: str, stats: Callable[[], TaskStats]
) -> Iterator[None]:
    """Show a task on its lake's board while it runs.

    Without a place, or if the folder cannot be made, it shows nothing.
    """
    with ExitStack() as writers:
        if place is not None:
            try:
                folder = place.make()
                _sweep(folder)
                writer = BoardWriter(folder, name, stats)
                writer.start()
                writers.callback(writer.close)
            except (ConfigError, OSError) as error:
                _log.warning("live board: %s: what this task sees is shown nowhere", error)
        yield


def read_board(place: LivePlace) -> list[TaskStats]:
    """Return the newest statistics of a lake's tasks, by name.

    Raises:
        ConfigError: the folder is not private.
    """
    if not place.folder.is_dir():
        return []
    place.require_private()
    return sorted(_sweep(place.folder), key=lambda stats: stats.task)


def _sweep(folder: Path) -> list[TaskStats]:
    files = sorted(folder.glob(f"*{_SUFFIX}"))
    unfinished = list(folder.glob(f"*{_UNFINISHED}"))
    if not files and not unfinished:
        return []
    now = _time_of(folder)
    all_stats = []
    for file in files:
        with suppress(OSError):  # its task has just removed it, or it is not ours to read
            stats, age_seconds = _read(file, now)
            if stats is not None and _is_news(stats, age_seconds):
                all_stats.append(stats)
            elif age_seconds > ABANDONED_SECONDS or (stats is not None and _is_of_here(stats)):
                file.unlink(missing_ok=True)
    for file in unfinished:
        with suppress(OSError):  # its task has just finished it
            if now - file.stat().st_mtime > STALE_SECONDS:
                file.unlink(missing_ok=True)  # a task that lives writes another one at once
    return all_stats


def _time_of(folder: Path) -> float:
    """Return the folder's present time, by its file system; our own if we may not write."""
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


def _is_news(stats: TaskStats, age_seconds: float) -> bool:
    may_live = not _is_of_here(stats) or psutil.pid_exists(stats.pid)
    return age_seconds <= STALE_SECONDS and may_live


def _is_of_here(stats: TaskStats) -> bool:
    return stats.host == socket.gethostname()
