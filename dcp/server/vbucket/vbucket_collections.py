"""The collections of one vbucket: its manifest, and the newest seqno of each collection.

A vbucket learns of collections by its own items: the manifest that it stands at is what its system
events made it, and a fork that loses events loses what they told. It then lags behind the bucket's
manifest until it emits events anew.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dcp.server.model.manifest import DEFAULT_ID, FIRST, Collection, Manifest
from dcp.server.model.versions import Version
from dcp.types import U64_MAX
from dcp.wire.system_event import CollectionEnded


class VbucketCollections:
    """The collections of one vbucket, fed with every item that is appended to its history."""

    def __init__(self) -> None:
        self.manifest = FIRST
        self._high: dict[int, int] = {}
        self._max_visible_seqno = 0
        self._steps: list[tuple[int, Manifest]] = []

    def find(self, collection: int) -> Collection | None:
        """Return the collection of an id, None where there is none now."""
        return self.manifest.collections.get(collection)

    @property
    def high_seqnos(self) -> Mapping[int, int]:
        """The newest seqno of each collection that has items: of documents, sync writes, events."""
        return self._high

    @property
    def max_visible_seqno(self) -> int:
        """The newest seqno of an item that plain clients see."""
        return self._max_visible_seqno

    def note(self, version: Version) -> None:
        """Count a new item of the history."""
        self._high[version.collection] = version.seqno
        if isinstance(version.event, CollectionEnded) and version.collection != DEFAULT_ID:
            del self._high[version.collection]  # its id is never given again
        if version.is_visible:
            self._max_visible_seqno = version.seqno

    @property
    def steps(self) -> Sequence[tuple[int, Manifest]]:
        """Each system event's seqno with the manifest that the vbucket stands at from it on."""
        return self._steps

    def restore(
        self, steps: Iterable[tuple[int, Manifest]], high_seqnos: Mapping[int, int], high_seqno: int
    ) -> None:
        """Restore what was saved of a vbucket that ends at ``high_seqno``, after ``cut`` there.

        It may include items above that, if they were lost before they were on disk.
        """
        self._steps = [step for step in steps if step[0] <= high_seqno]
        self.manifest = self._steps[-1][1] if self._steps else FIRST
        for collection, seqno in high_seqnos.items():
            if seqno <= high_seqno and (collection <= 0 or self.find(collection) is not None):
                self._high[collection] = max(seqno, self._high.get(collection, 0))

    def stand_at(self, manifest: Manifest, seqno: int) -> None:
        """Stand at another manifest from the system event at ``seqno`` on."""
        self.manifest = manifest
        self._steps.append((seqno, manifest))

    def forget_steps(self, may_be_cut: Callable[[int, int], bool]) -> None:
        """Forget the manifests that no possible cut returns to."""
        ends = [*(seqno for seqno, _ in self._steps[1:]), U64_MAX]
        self._steps = [
            step for step, end in zip(self._steps, ends, strict=False) if may_be_cut(step[0], end)
        ]

    def raise_to(self, seqno: int) -> None:
        """Count documents of the default collection up to ``seqno`` that were not noted."""
        self._high[0] = max(self._high.get(0, 0), seqno)
        self._max_visible_seqno = max(self._max_visible_seqno, seqno)

    def cut(self, seqno: int, left: Iterable[Version]) -> None:
        """Forget what came after ``seqno``; ``left`` holds at least the newest of every key."""
        self._steps = [step for step in self._steps if step[0] <= seqno]
        self.manifest = self._steps[-1][1] if self._steps else FIRST
        self._high.clear()
        self._max_visible_seqno = 0
        for version in sorted(left, key=lambda version: version.seqno):
            self.note(version)
