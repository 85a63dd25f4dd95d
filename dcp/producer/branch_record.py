"""Keeps every version of every branch, so that tests can ask for any earlier contents.

Tests compare replicas with this record. Writes and forks feed it directly, and it never asks the
vbucket's own history, so that an error there shows. It keeps lost versions in memory too;
long-running producers turn it off (``ClusterSettings.record_branches``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from dcp.server.model.versions import Version
from dcp.types import FailoverLog


@dataclass(slots=True)
class _Branch:
    parent: _Branch | None
    cut_seqno: int
    """Up to this seqno the branch has the versions of its parent."""
    versions: list[Version] = field(default_factory=list)
    """Versions written on this branch itself, in seqno order."""

    def versions_to(self, end: int) -> Iterator[Version]:
        yield from takewhile(lambda version: version.seqno <= end, self.versions)


class BranchRecord:
    """All branches that one vbucket ever had."""

    def __init__(self, vbucket: int, failover_log: FailoverLog) -> None:
        """Start with the branches of ``failover_log``; the older ones have no versions."""
        self._vbucket = vbucket
        parent: _Branch | None = None
        self._branches: dict[int, _Branch] = {}
        for entry in reversed(failover_log.entries):
            parent = _Branch(parent, entry.seqno)
            self._branches[entry.vb_uuid] = parent
        self._current = self._branches[failover_log.current_uuid]

    def append(self, version: Version) -> None:
        self._current.versions.append(version)

    def follow(self, failover_log: FailoverLog, high_seqno: int) -> None:
        """Start a new current branch at ``high_seqno`` if the failover log has begun one.

        Its parent is the branch below it in the failover log, or the current one if the record
        lacks that.
        """
        if failover_log.current_uuid in self._branches:
            return
        parent = self._current
        for entry in failover_log.entries[1:2]:
            parent = self._branches.get(entry.vb_uuid, parent)
        self._current = _Branch(parent, high_seqno)
        self._branches[failover_log.current_uuid] = self._current

    @property
    def vb_uuids(self) -> tuple[int, ...]:
        return tuple(self._branches)

    def state_at(
        self, seqno: int, vb_uuid: int | None = None, collection: int = 0
    ) -> dict[bytes, Version]:
        """Return a collection's documents by key, as they were at ``seqno`` of a branch.

        The result is empty if the collection did not exist. Raises ValueError for an unknown
        ``vb_uuid``.
        """
        if vb_uuid is not None and vb_uuid not in self._branches:
            known = ", ".join(f"{uuid:#x}" for uuid in self._branches)
            raise ValueError(
                f"vbucket {self._vbucket}: found branch {vb_uuid:#x}, expected one of {known}"
            )
        branch = self._current if vb_uuid is None else self._branches[vb_uuid]
        documents: dict[bytes, Version] = {}
        for part, end in _oldest_first(branch, seqno):
            for version in part.versions_to(end):
                if version.emptied_collection == collection:
                    documents.clear()
                elif version.collection == collection and version.is_document:
                    documents[version.key] = version
        return {key: version for key, version in documents.items() if not version.is_deleted}


def _oldest_first(branch: _Branch, seqno: int) -> list[tuple[_Branch, int]]:
    """Return the branch and its ancestors, each with the last seqno that ``branch`` has of it."""
    found = []
    at: _Branch | None = branch
    while at is not None:
        found.append((at, seqno))
        seqno = min(seqno, at.cut_seqno)
        at = at.parent
    return found[::-1]
