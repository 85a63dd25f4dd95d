"""Removes the files that Spark makes and nobody needs when a session ends well."""

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOG_NAME: Final = "spark.log"
_ERROR: Final = b" ERROR "


_logs: list[Path] = []


def temporary_log_file() -> Path:
    """Return a log file in a new folder, which goes at exit unless Spark logged an error."""
    file = Path(tempfile.mkdtemp(prefix="dcplake-")) / _LOG_NAME
    atexit.register(_remove_log, file, os.getpid())
    _logs.append(file)
    return file


def sockets_folder() -> Path:
    """Return a new folder that nobody else may enter; it goes at exit.

    Names of sockets have some 100 characters at most, and folders for temporary files may be deep.
    """
    folder = Path(tempfile.mkdtemp(prefix="dcplake-", dir="/tmp"))
    atexit.register(_remove_folder, folder, os.getpid())
    return folder


def kept_log() -> Path | None:
    """Keep Spark's log at exit, for a message that names it; None where dcplake chose no log."""
    atexit.unregister(_remove_log)
    return _logs[-1] if _logs else None


def remove_empty_warehouse_at_exit() -> None:
    """Remove the ``spark-warehouse`` that Spark makes in the current folder, unless it is used.

    The setting stays Spark's or the user's: a lake in a catalog schema may live there.
    """
    folder = Path("spark-warehouse").absolute()
    if not folder.exists():
        atexit.register(_remove_if_empty, folder, os.getpid())


def _remove_if_empty(folder: Path, process_id: int) -> None:
    if os.getpid() == process_id:  # a forked process is not the one that made it
        with suppress(OSError):
            folder.rmdir()


def _remove_log(log_file: Path, process_id: int) -> None:
    if os.getpid() != process_id or _has_error(log_file):
        return
    with suppress(OSError):
        for file in log_file.parent.glob(f"{_LOG_NAME}*"):  # log4j's configuration, too
            file.unlink()
        log_file.parent.rmdir()


def _remove_folder(folder: Path, process_id: int) -> None:
    if os.getpid() == process_id:
        shutil.rmtree(folder, ignore_errors=True)


def _has_error(log_file: Path) -> bool:
    rolled = log_file.parent.glob(f"{_LOG_NAME}.[0-9]*")  # log4j begins a new file now and then
    for file in (log_file, *rolled):
        with suppress(FileNotFoundError), file.open("rb") as lines:
            if any(_ERROR in line for line in lines):
                return True
    return False
