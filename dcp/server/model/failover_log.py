"""Branches in a failover log: new uuids, and the entries that a new branch erases.

Source: kv_engine ``engines/ep/src/failover-table.cc`` (``createEntry``, ``generateUuid``).
"""

from collections.abc import Callable
from typing import Final

from dcp.types import MAX_FAILOVER_ENTRIES, FailoverEntry, FailoverLog

LARGEST_NEW_UUID: Final = (1 << 48) - 1
"""Largest uuid that servers create: it survives in clients that keep numbers as doubles.
Requests, other servers' failover logs and older data folders can have any 64-bit uuid."""


def fresh_uuid(random_from_to: Callable[[int, int], int]) -> int:
    """Return a random uuid for a new branch: 48 bits, never 0."""
    return random_from_to(1, LARGEST_NEW_UUID)


def fork(failover_log: FailoverLog, seqno: int, vb_uuid: int) -> FailoverLog:
    """Return the failover log after a branch ``vb_uuid`` began at ``seqno``.

    Raises:
        ValueError: the uuid is 0 or already in the failover log, or a number is not unsigned
        64-bit.
    """
    if vb_uuid == 0 or any(entry.vb_uuid == vb_uuid for entry in failover_log.entries):
        raise ValueError(f"new branch: found uuid {vb_uuid}, expected a fresh one other than 0")
    # Branches that began above the fork hold items that the new branch lacks: they are erased.
    shared = (entry for entry in failover_log.entries if entry.seqno <= seqno)
    return FailoverLog((FailoverEntry(vb_uuid, seqno), *shared)[:MAX_FAILOVER_ENTRIES])
