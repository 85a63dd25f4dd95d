"""The windows of one task's connections, as the policy of its executor has them.

    with task_windows(flow_control) as windows:
        consumer = Consumer(…, windows=windows)

Policies that look at other connections need to know those of the other tasks of the same executor:
``window_register.py`` keeps them. The others are a number.

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
from dcp.lake.window_register import WindowRegister
from dcp.protocol.window_policies import Policy

_log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
"""How often a task looks whether windows changed: one small read."""
DEATH_SECONDS: Final = 1.0
"""How often it looks for tasks that died: a few file operations for each task."""
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
        self._sizes: dict[str, int] = {}
        self._seen = -1
        self._look_at = self._search_at = -inf
        self._has_failed = False
        self.share = WindowShare(flow.window_policy, flow.window_quota_bytes)
        """How the windows of the executor stand; other threads may look."""
        self._register: WindowRegister | None = None
        with self._tolerated():
            policy = policy_settings(flow)
            self._register = WindowRegister(folder, policy, flow.window_quota_bytes)

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
        if self._register is None or now < self._look_at:
            return {}
        self._look_at = now + LOOK_SECONDS
        found: Mapping[str, int] = {}
        with self._tolerated():
            if now < self._search_at and self._register.changes == self._seen:
                return {}
            self._search_at = now + DEATH_SECONDS
            found = self._floored(self._register.look())
            self._seen = self._register.changes
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
        register, self._register = self._register, None
        if register is not None:
            with self._tolerated():
                register.leave()

    def _declared(self) -> Mapping[str, int]:
        found: Mapping[str, int] = {}
        if self._register is not None:
            with self._tolerated():
                found = self._floored(self._register.declare(self._sizes))
        return found

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
            if not self._has_failed:
                self._has_failed = True
                _log.warning(
                    "windows of this executor cannot be shared out (%s): new connections get %d "
                    "bytes, others keep what they have",
                    error,
                    self._flow.least_window_bytes,
                )
