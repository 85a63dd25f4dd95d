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


class FixedWindows:
    """The same window for every connection, for ever."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes

    def opened(self, name: str) -> int:
        """Return the window."""
        del name
        return self._window_bytes

    def closed(self, name: str) -> None:
        """Do nothing."""

    def changes(self, now: float) -> Mapping[str, int]:
        """Return nothing."""
        del now
        return _NOTHING
