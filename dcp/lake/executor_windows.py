"""The windows of one task's connections, as the policy of its executor has them.

    with task_windows(flow_control) as windows:
        consumer = Consumer(…, windows=windows)

Policies that look at other connections need to know those of the other tasks of the same executor:
``window_register.py`` keeps them. The others are a number.

Another task may be stopped while it has the register locked. That costs size, no data: looking
never waits, a connection that comes or goes waits once, and what could not be said is said later.

A Spark worker does not know its executor's name, but where its block manager keeps its files: that
is new for each executor of each application. Without Spark the parent process stands in for it.
"""

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final

from dcp.client.windows import SameWindows, Windows
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.live_look import WindowShare
from dcp.lake.window_bounds import floored, part_of_quota, policy_settings
from dcp.lake.window_register import LOCK_SECONDS, WindowRegister
from dcp.protocol.window_policies import Policy

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
"""How often a task looks whether windows changed: one small read."""
DEATH_SECONDS: Final = 1.0
"""How often it looks for tasks that died: a few file operations for each task."""
STALLED_SECONDS: Final = 5.0
"""A register that is locked at every look for so long is locked by a task that does not go on."""
_ALONE: Final = (Policy.NONE, Policy.STATIC)
_BLOCK_MANAGER: Final = "blockmgr-"


@contextlib.contextmanager
def task_windows(flow: FlowControlSettings) -> Iterator[Windows]:
    """Give a task its windows until it ends. A register that cannot be used is logged, no error."""
    if Policy(flow.window_policy) in _ALONE:
        yield SameWindows(flow.fixed_window_bytes)
        return
    windows = ExecutorWindows(flow, register_folder(flow))
    try:
        yield windows
    finally:
        windows.leave()


def register_folder(flow: FlowControlSettings) -> Path:
    """Return the folder of this executor's register; runs with other numbers have another."""
    numbers = f"{policy_settings(flow)} {flow.window_quota_bytes}"
    key = hashlib.sha256(f"{_executor()} {numbers}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"dcplake-{os.geteuid()}", f"windows-{key}")


def _executor() -> str:
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    return folders if _BLOCK_MANAGER in folders else f"process {os.getppid()}"


def share_of(windows: Windows) -> WindowShare | None:
    """Return how windows are shared out; None where each has the same."""
    return windows.share if isinstance(windows, ExecutorWindows) else None


class ExecutorWindows:
    """Windows that are shared out among all connections of an executor."""

    def __init__(self, flow: FlowControlSettings, folder: Path) -> None:
        """Join the register in ``folder``."""
        self._flow = flow
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._is_declared = True
        self._seen = -1
        self._look_at = self._search_at = -inf
        self._locked_since = inf
        self._is_stalled = self._has_failed = self._has_left = False
        self.share = WindowShare(flow.window_policy, flow.window_quota_bytes)
        """How the windows of the executor stand; other threads may look."""
        self._register: WindowRegister | None = None
        with self._tolerated():
            self._joined()

    def opened(self, name: str) -> int:
        """Return the window of a new connection; the others' change with it."""
        self._sizes[name] = 0
        self._sizes[name] = self._declared().get(name, self._flow.least_window_bytes)
        return self._sizes[name]

    def closed(self, name: str) -> None:
        """Let the others have what a connection had."""
        if self._sizes.pop(name, None) is not None:
            self._declared()

    def changes(self, now: float) -> Mapping[str, int]:
        """Return what others' coming and going changed; looks at most every ``LOOK_SECONDS``."""
        if self._has_left or now < self._look_at:
            return {}
        self._look_at = now + LOOK_SECONDS
        found: Mapping[str, int] = {}
        with self._tolerated():
            if now < self._search_at and not self._has_changed():
                return {}
            self._search_at = now + DEATH_SECONDS
            try:
                found = self._looked()
                self._locked_since = inf
            except TimeoutError:
                self._search_at = now
                self._locked_since = min(self._locked_since, now)
                if now - self._locked_since < STALLED_SECONDS:
                    return {}  # others look and come, too
                raise
        changed = {
            name: found[name]
            for name, window_bytes in self._sizes.items()
            if name in found and found[name] != window_bytes
        }
        self._sizes.update(changed)
        self.share = replace(self.share, resizes=self.share.resizes + len(changed))
        for name, window_bytes in changed.items():
            _log.info("window of %s: %d bytes, with %d connections", name, window_bytes, len(found))
        return changed

    def leave(self) -> None:
        """Take all connections out."""
        self._has_left = True
        register, self._register = self._register, None
        if register is not None:
            with self._tolerated():
                register.leave(self._wait_seconds)

    def _declared(self) -> Mapping[str, int]:
        """Say which connections there are, now or at the next look; return the windows of all."""
        found: Mapping[str, int] = {}
        if not self._has_left:
            self._is_declared, self._search_at = False, -inf
            with self._tolerated():
                found = self._said(self._wait_seconds)
        return found

    def _said(self, wait_seconds: float) -> Mapping[str, int]:
        found = self._joined(wait_seconds).declare(self._sizes, wait_seconds)
        self._is_declared, self._is_stalled = True, False
        return self._floored(found)

    def _looked(self) -> Mapping[str, int]:
        """Return the windows of all, without waiting; what was not said before is said first."""
        register = self._joined(0.0)
        found = self._floored(register.look()) if self._is_declared else self._said(0.0)
        self._is_stalled = False
        self._seen = register.changes
        return found

    def _joined(self, wait_seconds: float = LOCK_SECONDS) -> WindowRegister:
        if self._register is None:
            self._register = WindowRegister(
                self._folder,
                policy_settings(self._flow),
                self._flow.window_quota_bytes,
                wait_seconds,
            )
        return self._register

    def _has_changed(self) -> bool:
        return self._register is not None and self._register.changes != self._seen

    @property
    def _wait_seconds(self) -> float:
        """One wait for each task that is stopped, however many connections come and go then."""
        return 0.0 if self._is_stalled else LOCK_SECONDS

    def _floored(self, granted: Mapping[str, int]) -> Mapping[str, int]:
        """Return all windows of the executor as they are used, and note what they come to."""
        found = {name: floored(self._flow, window_bytes) for name, window_bytes in granted.items()}
        windows_bytes = sum(found.values())
        self.share = replace(
            self.share,
            connections=len(found),
            windows_bytes=windows_bytes,
            excess_bytes=max(0, windows_bytes - part_of_quota(self._flow)),
        )
        return found

    @contextlib.contextmanager
    def _tolerated(self) -> Iterator[None]:
        """A full or forbidden temporary folder must not stop the data: smallest windows do not."""
        try:
            yield
        except (OSError, ValueError) as error:
            self._is_stalled = self._is_stalled or isinstance(error, TimeoutError)
            if not self._has_failed:
                self._has_failed = True
                _log.warning(
                    "windows of this executor cannot be shared out (%s): new connections get %d "
                    "bytes, others keep what they have",
                    error,
                    self._flow.least_window_bytes,
                )
