"""Locks a local lake with a file in its root, so that a second driver fails at once.

Safety does not depend on it: the fence of each commit keeps two drivers from both committing. Lakes
in object stores and catalogs have no lock file.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dcp.errors import FencedError, SetupError
from dcp.file_lock import LockHeldError, take_lock

LOCK_NAME: Final = "_dcplake.lock"


class LakeLockedError(FencedError): ...


@contextlib.contextmanager
def locked(root: Path | None, command: str, *, makes_lake: bool) -> Iterator[None]:
    """Hold the lock of the lake at ``root``; do nothing if ``root`` is None.

    If the folder is missing, only a command that ``makes_lake`` makes it.

    Raises:
        LakeLockedError: another process holds the lock; the message names it.
        SetupError: the lock file cannot be opened.
    """
    if root is None or not (makes_lake or root.exists()):
        yield
        return
    path = root / LOCK_NAME
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = take_lock(path, command)
    except LockHeldError as refused:
        raise LakeLockedError(
            f"lake {root}: another driver works on it ({refused.holder}), "
            "expected to be the only one; wait for it, or stop it"
        ) from None
    except OSError as error:
        raise SetupError(
            f"lock file {path}: cannot open it: {error.strerror}; expected a lake.root that this "
            "user can write"
        ) from None
    try:
        yield
    finally:
        lock.release()
