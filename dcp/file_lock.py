"""A lock file: one process at a time works in a folder, and others learn which one.

The lock is the system's (``flock``), so it ends with its process in any case. The file's text names
the holder.
"""

import json
import os
import socket
from pathlib import Path

import filelock

from dcp.errors import DcplakeError


class LockHeldError(DcplakeError):
    """Another process holds the lock, or another part of this one; ``holder`` is its text."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"lock file {path}: found it held ({holder}), expected nobody")
        self.holder = holder


def take_lock(path: Path, command: str) -> filelock.BaseFileLock:
    """Take the lock. Its folder must exist; ``command`` names the holder to others.

    Raises:
        LockHeldError: another process holds it.
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
