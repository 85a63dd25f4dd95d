"""What a session that ends well leaves behind: nothing. Files that Spark makes and nobody needs."""

import atexit
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOG_NAME: Final = "spark.log"
_ERROR: Final = b" ERROR "


def temporary_log_file() -> Path:
    """Return a log file in a new folder, which goes at exit unless Spark logged an error."""
    folder = Path(tempfile.mkdtemp(prefix="dcplake-"))
    atexit.register(_remove_log, folder / _LOG_NAME, os.getpid())
    return folder / _LOG_NAME


def keep_log() -> None:
    """Keep it in any case: a message names it."""
    atexit.unregister(_remove_log)


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


def _has_error(log_file: Path) -> bool:
    try:
        with log_file.open("rb") as lines:
            return any(_ERROR in line for line in lines)
    except FileNotFoundError:
        return False
