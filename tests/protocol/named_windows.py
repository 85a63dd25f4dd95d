"""Shared windows of connections that have names."""

from functools import partial

from dcp.protocol.window_policies import Resize, SharedWindows, WindowPolicySettings


class NamedWindows(SharedWindows):
    """Methods return the windows that they changed, by name."""

    def __init__(self, settings: WindowPolicySettings, quota_bytes: int) -> None:
        super().__init__(settings, quota_bytes)
        self._resizes: dict[str, Resize] = {}
        self._changed: dict[str, int] = {}

    def connect(self, name: str) -> dict[str, int]:
        resize = self._resizes[name] = partial(self._changed.__setitem__, name)
        own_bytes = self.join(resize)
        return {**self.taken_changes(), name: own_bytes}

    def disconnect(self, name: str) -> dict[str, int]:
        self.leave(self._resizes.pop(name))
        return self.taken_changes()

    def taken_changes(self) -> dict[str, int]:
        """Return the changes since the last call."""
        changed = dict(self._changed)
        self._changed.clear()
        return changed

    @property
    def sizes(self) -> dict[str, int]:
        return {name: self._sizes[resize] for name, resize in self._resizes.items()}

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes.values())
