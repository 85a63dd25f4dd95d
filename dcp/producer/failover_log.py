"""The life cycle of a failover log: what a new branch does to the entries that are there.

Pure. Source: kv_engine ``engines/ep/src/failover-table.cc`` (``createEntry``).
"""

from dcp.types import MAX_FAILOVER_ENTRIES, FailoverEntry, FailoverLog


def fork(log: FailoverLog, seqno: int, vb_uuid: int) -> FailoverLog:
    """Return the log after a branch ``vb_uuid`` began at ``seqno``.

    Branches that began above ``seqno`` diverged from what is left and are erased; the new one
    goes in front; the oldest beyond ``MAX_FAILOVER_ENTRIES`` are dropped.

    Raises:
        ValueError: the uuid is 0 or already in the log, or a number is not unsigned 64-bit.
    """
    if vb_uuid == 0 or any(entry.vb_uuid == vb_uuid for entry in log.entries):
        raise ValueError(f"new branch: found uuid {vb_uuid}, expected a fresh one other than 0")
    shared = (entry for entry in log.entries if entry.seqno <= seqno)
    return FailoverLog((FailoverEntry(vb_uuid, seqno), *shared)[:MAX_FAILOVER_ENTRIES])
