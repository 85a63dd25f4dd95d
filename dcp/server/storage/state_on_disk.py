"""Encodes the state of a vbucket for its log, and decides when a batch must include it."""

from collections.abc import Callable

from dcp.server.storage.saved_vbucket import SavedVbucket


class StateOnDisk:
    """Remembers the last encoded state.

    The vbucket sets ``state_at`` after it has opened its log.
    """

    def __init__(self, written: Callable[[], bytes]) -> None:
        self.state_at: Callable[[int], SavedVbucket | None] = lambda _: None
        """Returns the state to save with the items up to a seqno; None: save none."""
        self._written = written
        self._encoded: tuple[bytes, object] = b"", None

    def encoded_at(self, seqno: int) -> bytes:
        state = self.state_at(seqno)
        return b"" if state is None else self._encode(state)

    def news_at(self, seqno: int) -> bytes:
        """Return the encoded state; empty if the items alone show everything that changed."""
        state = self.state_at(seqno)
        encoded, lasting = self._encoded
        # The state that was encoded last may never have reached the disk.
        if state is None or (self._written() == encoded and state.lasting == lasting):
            return b""
        return self._encode(state)

    def _encode(self, state: SavedVbucket) -> bytes:
        self._encoded = state.encode(), state.lasting
        return self._encoded[0]
