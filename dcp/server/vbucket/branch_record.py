"""Records every branch of a vbucket, so that tests can ask for its contents at any seqno of any.

Tests compare replicas with it. It keeps what the history loses: a list of versions per branch, in
seqno order, never changed after it was written, and for each branch where it was cut off its
parent. It is fed by writes and forks and asks the history nothing, so that an error there shows.
Lost versions stay in memory: a producer that serves for long does without
(``ClusterSettings.record_branches``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from dcp.server.model.versions import Version
from dcp.server.vbucket.documents import StoredDocument
from dcp.types import FailoverLog


@dataclass(slots=True)
class _Branch:
    """A branch; up to ``cut_seqno`` it holds what its parent held there."""

    parent: _Branch | None
    cut_seqno: int
    versions: list[Version] = field(default_factory=list)

    def versions_to(self, end: int) -> Iterator[Version]:
        """Yield what was written on this branch itself up to the seqno ``end``, in order."""
        yield from takewhile(lambda version: version.seqno <= end, self.versions)


class BranchRecord:
    """All branches that one vbucket ever had."""

    def __init__(self, vbucket: int, log: FailoverLog) -> None:
        """Begin with the branches of ``log``; the older ones hold nothing of their own."""
        self._vbucket = vbucket
        parent: _Branch | None = None
        self._branches: dict[int, _Branch] = {}
        for entry in reversed(log.entries):
            parent = _Branch(parent, entry.seqno)
            self._branches[entry.vb_uuid] = parent
        self._current = self._branches[log.current_uuid]

    def append(self, version: Version) -> None:
        """Note the newest version of the current branch."""
        self._current.versions.append(version)

    def fork(self, vb_uuid: int, cut_seqno: int, parent_uuid: int | None = None) -> None:
        """Begin a branch that holds another one up to ``cut_seqno``, and make it current.

        That is the current one where ``parent_uuid`` names none that ever was.
        """
        parent = self._current
        if parent_uuid is not None:
            parent = self._branches.get(parent_uuid, parent)
        self._current = _Branch(parent, cut_seqno)
        self._branches[vb_uuid] = self._current

    @property
    def vb_uuids(self) -> tuple[int, ...]:
        """The uuids of all branches, oldest first."""
        return tuple(self._branches)

    def state_at(
        self, seqno: int, vb_uuid: int | None = None, collection: int = 0
    ) -> dict[bytes, StoredDocument]:
        """Return a collection's documents on a branch at ``seqno`` (at most the branch's end).

        A collection that was not there, or was dropped, holds nothing.

        Raises:
            ValueError: there never was a branch of that uuid.
        """
        if vb_uuid is not None and vb_uuid not in self._branches:
            known = ", ".join(f"{uuid:#x}" for uuid in self._branches)
            raise ValueError(
                f"vbucket {self._vbucket}: found branch {vb_uuid:#x}, expected one of {known}"
            )
        branch = self._current if vb_uuid is None else self._branches[vb_uuid]
        held: dict[bytes, Version] = {}
        for part, end in _oldest_first(branch, seqno):
            for version in part.versions_to(end):
                if version.emptied_collection == collection:
                    held.clear()
                elif version.collection == collection and version.is_document:
                    held[version.key] = version
        return {key: StoredDocument.of(v) for key, v in held.items() if not v.is_deleted}


def _oldest_first(branch: _Branch, seqno: int) -> list[tuple[_Branch, int]]:
    """Return the branches that ``branch`` grew from, each with the seqno up to which it counts."""
    found = []
    at: _Branch | None = branch
    while at is not None:
        found.append((at, seqno))
        seqno = min(seqno, at.cut_seqno)
        at = at.parent
    return found[::-1]
