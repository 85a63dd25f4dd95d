"""A lock file in the root of a local lake: a second driver is told at once, before it reads.

The lock is ``flock``'s, so that it ends with its process however that dies; the file's text says
who holds it. It is a courtesy: what keeps two drivers from both committing is the fence of each
commit. Lakes in object stores and catalogs have no lock file.
"""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from dcp.errors import FencedError, LakeError

LOCK_NAME: Final = "_dcplake.lock"


def local_root(root: str) -> Path | None:
    """Return the folder of a lake root on this machine; None where it is in another store."""
    parts = urlsplit(root)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in root or parts.scheme in _REMOTE_SCHEMES else Path(root).expanduser()


_REMOTE_SCHEMES: Final = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs", "wasbs", "dbfs")


@contextlib.contextmanager
def locked(root: Path | None, command: str) -> Iterator[None]:
    """Hold the lock of the lake at ``root``; do nothing where ``root`` is None.

    Raises:
        FencedError: another process holds it; names the process.
        LakeError: the file cannot be made.

    """
    if root is None:
        yield
        return
    path = root / LOCK_NAME
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LakeError(f"lock file {path}: cannot open it: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip()
            raise FencedError(
                f"lake {root}: another driver works on it ({holder or 'it left no name'}), "
                "expected to be the only one; wait for it, or stop it"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _holder(command).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(command: str) -> str:
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "command": command}) + "\n"
