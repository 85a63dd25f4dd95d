"""Resizes the windows of a process's connections by a policy, as connections come and go."""

from collections.abc import Callable, Mapping
from itertools import count

from dcp.protocol.window_policies import WindowPolicies, WindowPolicySettings

Resize = Callable[[int], None]
"""Gives a connection another window, of so many bytes."""


class SharedWindows:
    """Connections that share a quota, each known by the command that resizes its window.

    A new one may change the windows of those that are there (``window_policies.py`` has the rules).
    """

    def __init__(self, settings: WindowPolicySettings, quota_bytes: int) -> None:
        self._policies = WindowPolicies(settings, quota_bytes)
        self._names: dict[Resize, str] = {}
        self._numbers = count(1)

    def join(self, resize: Resize) -> int:
        """Return the window of a new connection; the others are told their new sizes."""
        name = str(next(self._numbers))
        sizes = self._policies.connect(name)
        self._tell(sizes)
        self._names[resize] = name
        return sizes[name]

    def leave(self, resize: Resize) -> None:
        """Forget a connection that is over; the others are told their new sizes."""
        self._tell(self._policies.disconnect(self._names.pop(resize)))

    def _tell(self, sizes: Mapping[str, int]) -> None:
        for resize, name in self._names.items():
            if name in sizes:
                resize(sizes[name])
