"""When a reader stops reading its socket: the last brake, against a node that ignores its window.

A node that keeps to it never gets there, also while its window shrinks: what it sent before it knew
of that is held longer than the smaller window allows, and reading must go on for the sake of NOOPs.
So the limit falls no faster than what is held, and what arrives on top of that stops the reading.
It goes on at three quarters of the limit, not with each message.
"""

from dcp.client.settings import ConnectionSettings


class ReadLimit:
    """The limit of one connection."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._limit_bytes = settings.held_limit_bytes(settings.window_bytes)

    @property
    def limit_bytes(self) -> int:
        """What may be held: at this size reading stops."""
        return self._limit_bytes

    def follow(self, held_bytes: int, window_bytes: int) -> None:
        """Take note of what is held, and of the largest window that the node may have now."""
        most_bytes = self._settings.held_limit_bytes(window_bytes)
        if most_bytes < self._limit_bytes:
            most_bytes = max(most_bytes, min(self._limit_bytes, held_bytes + 1))
        self._limit_bytes = most_bytes
