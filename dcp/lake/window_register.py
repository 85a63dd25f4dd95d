"""The connections of all tasks of one executor, and the window of each: a folder that they share.

A task is a process of its own. What they know of each other is in files:

    register     the lock; its eight bytes count the changes of ``sizes.json``
    sizes.json   the window of each connection, by name: what the policy has granted
    task-…       one for each task, locked while it lives; names its connections

Files are replaced as a whole. What is in one nevertheless that no task wrote counts as nothing: a
task so named lives, and has no connections until it declares them again.

The kernel frees the lock of a task that dies however it does. Whoever looks next finds the lock
free, takes the file away and lets the policy share out anew. So nothing here needs a process that
watches, and a task killed between any two steps leaves nothing but work for the next one: which
connections there are is said by the tasks' files alone.

A task that is stopped keeps its locks. So whoever wants the register's says how long it waits.

Folders of executors that are gone are removed by tasks that begin.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from struct import Struct
from time import monotonic, sleep
from typing import Any, Final

from dcp.protocol.window_policies import PolicySettings, WindowPolicies
from dcp.wire.json_tree import json_tree

_log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 1.0
"""Others hold the lock for a few file operations; one that was stopped meanwhile keeps it."""
_LOCK_POLL_SECONDS: Final = 0.005
_COUNT: Final = Struct("<Q")
_REGISTER: Final = "register"
_SIZES: Final = "sizes.json"
_TASK: Final = "task-"
_FOLDER: Final = "windows-"


class WindowRegister:
    """One task's part in the register; used by one thread."""

    def __init__(
        self,
        folder: Path,
        policy: PolicySettings,
        quota_bytes: int,
        wait_seconds: float = LOCK_SECONDS,
    ) -> None:
        """Join the register of an executor, which is made where it is not there.

        Raises:
            TimeoutError: another task kept it locked.
            OSError: the folder cannot be used, or is not this user's alone.
        """
        self._folder = folder
        self._policy = policy
        self._quota_bytes = quota_bytes
        _make_private(folder.parent)
        _remove_abandoned(folder)
        self._own_name = f"{_TASK}{os.getpid()}-{secrets.token_hex(4)}"
        self._register = _open_locked(folder, wait_seconds)
        try:
            self._own = _open(folder / self._own_name, os.O_EXCL)
            fcntl.flock(self._own, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._register)  # its lock goes with it
            raise
        fcntl.flock(self._register, fcntl.LOCK_UN)

    @property
    def changes(self) -> int:
        """How often windows changed; one small read."""
        return _count(self._register)

    def declare(
        self, names: Collection[str], wait_seconds: float = LOCK_SECONDS
    ) -> Mapping[str, int]:
        """Say which connections this task has; return the windows of all.

        Raises:
            TimeoutError: another task kept the register locked; nothing was said.
        """
        with self._locked(wait_seconds):
            self._replace_own(json.dumps(sorted(names)).encode())
            return self._share_out()

    def _replace_own(self, text: bytes) -> None:
        """Write this task's file anew; the new one is locked before it takes the old one's place.

        Its first name is a task's, too: if this process dies here, it is removed as one.
        """
        own, new = self._folder / self._own_name, self._folder / f"{self._own_name}.new"
        descriptor = _open(new, os.O_TRUNC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            written = os.write(descriptor, text)
            if written != len(text):
                raise OSError(errno.ENOSPC, f"wrote {written} of {len(text)} bytes", str(new))
            new.replace(own)
        except BaseException:
            new.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        os.close(self._own)
        self._own = descriptor

    def look(self) -> Mapping[str, int]:
        """Return the windows of all, after tasks that died were taken out; never waits.

        Raises:
            TimeoutError: another task has the register locked.
        """
        with self._locked(0.0):
            return self._share_out()

    def leave(self, wait_seconds: float = LOCK_SECONDS) -> None:
        """Take this task out; the last one removes the folder.

        Whatever goes wrong, this task counts no more: with its files its locks are closed, and
        whoever looks next takes it out.
        """
        try:
            with self._locked(wait_seconds):
                (self._folder / self._own_name).unlink(missing_ok=True)
                if not self._share_out():
                    _remove_if_empty(self._folder)
        finally:
            os.close(self._own)
            os.close(self._register)

    @contextlib.contextmanager
    def _locked(self, wait_seconds: float) -> Iterator[None]:
        _lock(self._register, self._folder, wait_seconds)
        try:
            yield
        finally:
            fcntl.flock(self._register, fcntl.LOCK_UN)

    def _share_out(self) -> Mapping[str, int]:
        """Let the policy know who came and who is gone; return the windows."""
        there = dict.fromkeys(name for each in _living(self._folder) for name in each)
        before = _read_sizes(self._folder / _SIZES)
        policies = WindowPolicies.resumed(self._policy, self._quota_bytes, before)
        for name in before:
            if name not in there:
                policies.disconnect(name)
        for name in there:
            if name not in before:
                policies.connect(name)
        if policies.sizes != before:
            temporary = self._folder / f"{_SIZES}.new"
            temporary.write_text(json.dumps(dict(policies.sizes)), "utf-8")
            temporary.replace(self._folder / _SIZES)
            os.pwrite(self._register, _COUNT.pack(_count(self._register) + 1), 0)
        return policies.sizes


def _living(folder: Path) -> Iterator[list[str]]:
    """Yield the connections of each task that lives, and remove the files of others.

    A lock that another file descriptor of this very process holds counts, too.
    """
    for path in sorted(folder.glob(f"{_TASK}*")):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            yield _names_in(text, path)
        else:
            path.unlink()
        finally:
            os.close(descriptor)


def _names_in(text: bytes, path: Path) -> list[str]:
    if not text:
        return []  # it begins
    found = _json(text)
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    _log.warning("%s: found no list of connections: none of this task is counted", path)
    return []


def _read_sizes(path: Path) -> dict[str, int]:
    """Return the windows granted before; none where the file says nothing: all are granted anew."""
    try:
        found = _json(path.read_bytes())
    except FileNotFoundError:
        return {}
    is_whole = isinstance(found, dict) and all(type(each) is int for each in found.values())
    return dict(found) if is_whole else {}


def _json(text: bytes) -> Any:
    try:
        return json_tree(text)
    except ValueError:
        return None


def _count(register: int) -> int:
    data = os.pread(register, _COUNT.size, 0)
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0


def _open(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)


def _open_locked(folder: Path, wait_seconds: float) -> int:
    """Return the register of a folder, locked, and not of one that somebody has just removed."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        _require_private(folder)
        try:
            register = _open(folder / _REGISTER)
        except FileNotFoundError:
            continue  # removed between the two
        try:
            _lock(register, folder, wait_seconds)
            if (folder / _REGISTER).stat().st_ino == os.fstat(register).st_ino:
                return register
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(register)
            raise
        os.close(register)


def _lock(register: int, folder: Path, wait_seconds: float) -> None:
    deadline = monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(register, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                raise TimeoutError(
                    f"{folder / _REGISTER}: locked by another task, after {wait_seconds:g} s"
                ) from None
            sleep(_LOCK_POLL_SECONDS)
        else:
            return


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_private(folder)


def _require_private(folder: Path) -> None:
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o077:
        raise PermissionError(
            f"{folder}: found owner {found.st_uid}, mode {mode:o}, expected a folder of user "
            f"{os.geteuid()} that nobody else may use"
        )


def _remove_abandoned(own: Path) -> None:
    """Remove the folders of executors that ended without a last task that could.

    One without a register gets one: its task died between the two, or begins at this moment and
    then finds that its register is another one, or none.
    """
    for folder in own.parent.glob(f"{_FOLDER}*"):
        if folder == own:
            continue
        with contextlib.suppress(OSError):  # removed by another one, or in use
            register = _open(folder / _REGISTER)
            try:
                fcntl.flock(register, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_if_empty(folder)
            finally:
                os.close(register)


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder whose register is locked by us, if no task lives in it."""
    if not list(_living(folder)):
        shutil.rmtree(folder, ignore_errors=True)
