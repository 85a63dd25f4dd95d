"""How far a vbucket's sync writes have come, as snapshot markers tell replicas of it.

Nothing is counted along: the newest versions of the keys say it, read when a marker needs them. A
key's prepare was completed if an abort took its place, or what the key holds is newer: while one is
under way nothing else is written to its key (kv_engine
``engines/ep/src/durability/durability_monitor.h``).
"""

from collections.abc import Iterable
from typing import NamedTuple

from dcp.producer.versions import COMMITTED, Version, VersionKey
from dcp.wire.vocabulary import Opcode


class Durability(NamedTuple):
    """Seqnos of a snapshot: its last item that plain clients see, and how far prepares got.

    ``high_completed_seqno`` is that of a prepare that was committed or aborted, as was all before
    it: the newest but for keys that have a later prepare, or were written beyond the snapshot.
    A replica keeps what it is not told of, so less is safe.
    """

    max_visible_seqno: int
    high_completed_seqno: int
    high_prepared_seqno: int

    def reaching(self, completed_seqno: int) -> "Durability":
        """Return the same, where a prepare up to this seqno is known to be completed too."""
        return self._replace(
            high_completed_seqno=max(self.high_completed_seqno, completed_seqno),
            high_prepared_seqno=max(self.high_prepared_seqno, completed_seqno),
        )


def durability_at(versions: Iterable[Version], end_seqno: int, floor: int) -> Durability:
    """Return where the newest versions up to a seqno stand; plain clients see that at ``floor``."""
    visible = min(floor, end_seqno)
    held: dict[VersionKey, int] = {}
    prepares: list[Version] = []
    completed = prepared = 0
    for version in versions:
        if version.seqno > end_seqno:
            continue
        if version.is_visible:
            visible = max(visible, version.seqno)
            held[version.stored_key] = version.seqno
        elif version.opcode == Opcode.DCP_ABORT:
            aborted = version.sync.prepared_seqno if version.sync else 0
            completed, prepared = max(completed, aborted), max(prepared, aborted)
        else:
            prepares.append(version)
    for prepare in prepares:
        prepared = max(prepared, prepare.seqno)
        if held.get((COMMITTED, prepare.collection, prepare.key), 0) > prepare.seqno:
            completed = max(completed, prepare.seqno)
    return Durability(visible, completed, prepared)
