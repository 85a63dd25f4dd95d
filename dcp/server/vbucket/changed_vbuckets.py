"""Collects the vbuckets that have news for their streams.

Listeners are called for the first change only, until ``collect``. So a stream sends writes that are
close together as one snapshot.
"""

from dcp.server.model.listeners import Listeners


class ChangedVbuckets:
    """Vbucket numbers; call it with the bucket's lock held."""

    def __init__(self) -> None:
        self._changed: set[int] = set()
        self.listeners: Listeners[[]] = Listeners()

    def __contains__(self, vbucket: int) -> bool:
        return vbucket in self._changed

    def add(self, vbucket: int) -> None:
        is_first = not self._changed
        self._changed.add(vbucket)
        if is_first:
            self.listeners()

    def collect(self) -> set[int]:
        changed, self._changed = self._changed, set()
        return changed
