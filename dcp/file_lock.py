"""A lock file: one process at a time works in a folder, and others are told which.

The lock is ``flock``'s, so that it ends with its process however that dies; the file's text says
who holds it.
"""

import fcntl
import json
import os
import socket
from pathlib import Path

from dcp.errors import DcplakeError


class LockHeldError(DcplakeError):
    """Another process holds the lock, or another part of this one; ``holder`` is its own text."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"lock file {path}: found it held ({holder}), expected nobody")
        self.holder = holder


class FileLock:
    """A lock that is held from when this is made until ``release``."""

    def __init__(self, path: Path, command: str) -> None:
        """Take the lock; its folder must exist, ``command`` tells others what holds it.

        Raises:
            LockHeldError: somebody else holds it.
            OSError: the file cannot be made.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 4096, 0).decode("utf-8", "replace").strip()
            os.close(self._descriptor)
            raise LockHeldError(path, holder or "it left no name") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, _holder(command).encode(), 0)

    def release(self) -> None:
        """Let go of the lock; once."""
        os.close(self._descriptor)


def _holder(command: str) -> str:
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "command": command}) + "\n"
