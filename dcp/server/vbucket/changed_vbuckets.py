"""The vbuckets that have something new for their streams, until those are told.

Listeners hear of the first change only until the changes are collected, so that writes close
together reach a stream as one snapshot.
"""

from dcp.server.model.listeners import Listeners


class ChangedVbuckets:
    """Numbers of vbuckets; used under the bucket's lock."""

    def __init__(self) -> None:
        self._changed: set[int] = set()
        self.listeners: Listeners[[]] = Listeners()

    def __contains__(self, vbucket: int) -> bool:
        return vbucket in self._changed

    def add(self, vbucket: int) -> None:
        """Note that ``vbucket`` has something new for its streams."""
        is_first = not self._changed
        self._changed.add(vbucket)
        if is_first:
            self.listeners()

    def collect(self) -> set[int]:
        """Return the vbuckets that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed
