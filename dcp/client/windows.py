"""Who says how large the flow-control window of each connection of a consumer is."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class Windows(Protocol):
    """Sizes by connection name, 0 for no flow control; asked by the application's thread only."""

    def opened(self, name: str) -> int:
        """Return the window of a new connection."""
        ...

    def closed(self, name: str) -> None:
        """Note that a connection has ended. Not called for those that a consumer closes itself."""
        ...

    def changes(self, now: float) -> Mapping[str, int]:
        """Return the sizes that are others than was said before; called often."""
        ...


class SameWindows:
    """The same window for every connection, until another one is chosen for all."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._names: set[str] = set()
        self._told_bytes = window_bytes

    def choose(self, window_bytes: int) -> None:
        """Let all connections have another window, those that are there too."""
        self._window_bytes = window_bytes

    def opened(self, name: str) -> int:
        """Return the window."""
        self._names.add(name)
        return self._window_bytes

    def closed(self, name: str) -> None:
        """Forget the connection."""
        self._names.discard(name)

    def changes(self, now: float) -> Mapping[str, int]:
        """Return the window chosen since the last time, for each connection."""
        del now
        if self._told_bytes == self._window_bytes:
            return _NOTHING
        self._told_bytes = self._window_bytes
        return dict.fromkeys(self._names, self._window_bytes)
