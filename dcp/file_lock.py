"""A lock file: one process at a time works in a folder, and others are told which.

The lock is the system's (``flock``), so that it ends with its process however that dies; the file's
text says who holds it.
"""

import json
import os
import socket
from pathlib import Path

import filelock

from dcp.errors import DcplakeError


class LockHeldError(DcplakeError):
    """Another process holds the lock, or another part of this one; ``holder`` is its own text."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"lock file {path}: found it held ({holder}), expected nobody")
        self.holder = holder


def take_lock(path: Path, command: str) -> filelock.BaseFileLock:
    """Take the lock; its folder must exist, ``command`` tells others what holds it.

    Raises:
        LockHeldError: somebody else holds it.
        OSError: the file cannot be made, or its file system has no locks.
    """
    lock = filelock.FileLock(
        path, mode=0o644, thread_local=False, blocking=False, fallback_to_soft=False
    )
    try:
        lock.acquire()
    except filelock.Timeout:
        found = path.read_text("utf-8", "replace").strip()
        raise LockHeldError(path, found or "it left no name") from None
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
    path.write_text(json.dumps(holder) + "\n")
    return lock
