"""Chooses folders for temporary files, and removes them at a normal exit."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dcp.errors import SetupError
from dcp.lake.spark.install_paths import data_folder

_SPARK_LOG_NAME: Final = "spark.log"
_ERROR: Final = b" ERROR "

_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  (mkdtemp makes private folders)
"""Other common folders for temporary files."""

_SHORT_BYTES: Final = 40
"""The longest folder name for sockets: Spark adds 60 bytes, and macOS allows 103."""


_spark_logs: list[Path] = []


def temporary_spark_log() -> Path:
    """Return a new file for Spark's log. Exit removes it unless Spark logged an error."""
    file = Path(tempfile.mkdtemp(prefix="dcplake-")) / _SPARK_LOG_NAME
    atexit.register(_remove_spark_log, file, os.getpid())
    _spark_logs.append(file)
    return file


def temporary_folder() -> Path:
    try:
        return Path(tempfile.gettempdir()).absolute()
    except FileNotFoundError as error:
        raise SetupError(
            f"temporary files: {error.strerror}; expected a folder that this user can write to: "
            "mount one, and name it in TMPDIR"
        ) from error


def sockets_folder() -> Path:
    """Return a new private folder with a short name; exit removes it.

    The name of a socket has about 100 characters at most, and temporary folders may be deep.
    """
    return _new_folder(
        lambda parent: len(os.fsencode(parent)) <= _SHORT_BYTES,
        f"a folder with a name of at most {_SHORT_BYTES} bytes, where Spark's sockets can be",
    )


def libraries_folder() -> Path | None:
    """Return a new folder for Java's native libraries; exit removes it.

    None if the usual temporary folder allows programs, because it is not mounted ``noexec``.
    """
    if _has_programs(temporary_folder()):
        return None
    return _new_folder(
        _has_programs, "a folder that is not mounted noexec, for Java's native libraries"
    )


def private_folder() -> Path:
    return _new_folder(lambda _: True, "a folder that this user can write to")


def _new_folder(fits: Callable[[Path], bool], wanted: str) -> Path:
    temporary = temporary_folder()
    for parent in (temporary, *map(Path, _FOLDERS), data_folder()):
        with suppress(OSError):
            if fits(parent):
                folder = Path(tempfile.mkdtemp(prefix="dcplake-", dir=parent))
                atexit.register(_remove_folder, folder, os.getpid())
                return folder
    raise SetupError(f"temporary files: found {temporary}, expected {wanted}: name one in TMPDIR")


def _has_programs(parent: Path) -> bool:
    return not os.statvfs(parent).f_flag & getattr(os, "ST_NOEXEC", 0)  # macOS lacks the constant


def home_folder() -> Path | None:
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  (Path.home() raises if there is none)
    return home if home.is_absolute() and home.is_dir() else None


def kept_spark_log() -> Path | None:
    """Keep Spark's log at exit, for a message that names it. None if dcplake chose none."""
    atexit.unregister(_remove_spark_log)
    return _spark_logs[-1] if _spark_logs else None


def remove_empty_warehouse_at_exit() -> None:
    """Make exit remove Spark's ``spark-warehouse`` from the current folder if it is empty.

    The setting itself stays unchanged, because a lake in a catalog schema may be there.
    """
    folder = Path("spark-warehouse").absolute()
    if not folder.exists():
        process_id = os.getpid()

        def remove() -> None:
            if os.getpid() == process_id:  # a forked process must not remove it
                with suppress(OSError):
                    folder.rmdir()

        atexit.register(remove)


def _remove_spark_log(spark_log: Path, process_id: int) -> None:
    if os.getpid() != process_id or _has_error(spark_log):
        return
    with suppress(OSError):
        for file in spark_log.parent.glob(f"{_SPARK_LOG_NAME}*"):  # includes log4j's configuration
            file.unlink()
        spark_log.parent.rmdir()


def _remove_folder(folder: Path, process_id: int) -> None:
    if os.getpid() == process_id:
        shutil.rmtree(folder, ignore_errors=True)


def _has_error(spark_log: Path) -> bool:
    rolled = spark_log.parent.glob(f"{_SPARK_LOG_NAME}.[0-9]*")  # log4j starts a new file at 50 MB
    for file in (spark_log, *rolled):
        with suppress(FileNotFoundError), file.open("rb") as lines:
            if any(_ERROR in line for line in lines):
                return True
    return False
