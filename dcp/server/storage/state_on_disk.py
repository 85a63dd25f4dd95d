"""Encodes the state of a vbucket for its log, and decides when it must be written."""

from collections.abc import Callable

from dcp.server.storage.saved_vbucket import SavedVbucket


class StateOnDisk:
    """Knows what was encoded last.

    Written from outside: ``state_at`` is the vbucket's, which is made when its log is open.
    """

    def __init__(self, written: Callable[[], bytes]) -> None:
        """``written`` returns the state that was last written."""
        self.state_at: Callable[[int], SavedVbucket | None] = lambda _: None
        """The state with the items up to a seqno; None where none is saved."""
        self._written = written
        self._encoded: tuple[bytes, object] = b"", None

    def encoded_at(self, seqno: int) -> bytes:
        """Return the state up to a seqno as it goes to disk."""
        state = self.state_at(seqno)
        return b"" if state is None else self._encode(state)

    def news_at(self, seqno: int) -> bytes:
        """Return the state up to a seqno; nothing where the items tell what changed of it."""
        state = self.state_at(seqno)
        encoded, lasting = self._encoded
        if state is None or (self._written() == encoded and state.lasting == lasting):
            return b""
        return self._encode(state)

    def _encode(self, state: SavedVbucket) -> bytes:
        self._encoded = state.encode(), state.lasting
        return self._encoded[0]
