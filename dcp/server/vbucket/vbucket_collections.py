"""The collections of one vbucket: its manifest, and the newest seqno of each collection.

A vbucket learns of collections only through the system events in its own history. After a rollback
it has an older manifest than its bucket, until it emits the events again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from dcp.server.model.manifest import DEFAULT_ID, FIRST, Collection, Manifest
from dcp.server.model.versions import Version
from dcp.types import U64_MAX
from dcp.wire.system_event import CollectionEnded


class VbucketCollections:
    """Call ``note`` with every item that is appended to the history."""

    def __init__(self) -> None:
        self.manifest = FIRST
        self._high: dict[int, int] = {}
        self._max_visible_seqno = 0
        self._steps: list[tuple[int, Manifest]] = []
        """Seqno of each system event, with the manifest that is valid from there on."""

    def find(self, collection: int) -> Collection | None:
        return self.manifest.collections.get(collection)

    @property
    def high_seqnos(self) -> Mapping[int, int]:
        """The newest seqno by collection, counting documents, sync writes and events."""
        return self._high

    @property
    def max_visible_seqno(self) -> int:
        """The newest seqno of an item that is neither a prepare nor an abort."""
        return self._max_visible_seqno

    def note(self, version: Version) -> None:
        self._high[version.collection] = version.seqno
        if isinstance(version.event, CollectionEnded) and version.collection != DEFAULT_ID:
            # The id of a dropped collection is never used again.
            del self._high[version.collection]
        if version.is_visible:
            self._max_visible_seqno = version.seqno

    @property
    def steps(self) -> Sequence[tuple[int, Manifest]]:
        return self._steps

    def restore(
        self, steps: Iterable[tuple[int, Manifest]], high_seqnos: Mapping[int, int], high_seqno: int
    ) -> None:
        """Restore saved values of a vbucket that now ends at ``high_seqno``; call ``cut`` first.

        Saved values may be newer than that, if items were lost before they reached the disk.
        """
        self._steps = [step for step in steps if step[0] <= high_seqno]
        self.manifest = self._steps[-1][1] if self._steps else FIRST
        for collection, seqno in high_seqnos.items():
            if seqno <= high_seqno and (collection <= 0 or self.find(collection) is not None):
                self._high[collection] = max(seqno, self._high.get(collection, 0))

    def stand_at(self, manifest: Manifest, seqno: int) -> None:
        self.manifest = manifest
        self._steps.append((seqno, manifest))

    def forget_steps(self, may_be_cut: Callable[[int, int], bool]) -> None:
        ends = [*(seqno for seqno, _ in self._steps[1:]), U64_MAX]
        self._steps = [
            step for step, end in zip(self._steps, ends, strict=False) if may_be_cut(step[0], end)
        ]

    def raise_to(self, seqno: int) -> None:
        """Count unrecorded documents of the default collection up to ``seqno``."""
        self._high[0] = max(self._high.get(0, 0), seqno)
        self._max_visible_seqno = max(self._max_visible_seqno, seqno)

    def cut(self, seqno: int, left: Iterable[Version]) -> None:
        """Forget everything above ``seqno``; ``left`` must have every key's newest version."""
        self._steps = [step for step in self._steps if step[0] <= seqno]
        self.manifest = self._steps[-1][1] if self._steps else FIRST
        self._high.clear()
        self._max_visible_seqno = 0
        for version in sorted(left, key=lambda version: version.seqno):
            self.note(version)
