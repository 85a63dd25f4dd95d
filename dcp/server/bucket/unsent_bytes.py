"""Bounds the encoded bytes that no socket has taken yet.

A client that does not read keeps its encoded batch as long as it likes. Each client may have a
first batch. Larger batches grow with the bytes that the client has taken, and share a quota; if the
quota is used up, clients get first batches. Silent clients therefore never make others wait.

    unsent of all   <=   UNSENT_QUOTA_BYTES + connections * (FIRST_BATCH_BYTES + one message)
"""

from typing import Final

FIRST_BATCH_BYTES: Final = 16 * 1024
"""Size of the batch for a client that has taken nothing yet, or while the quota is used up."""
LARGEST_BATCH_BYTES: Final = 512 * 1024
UNSENT_QUOTA_BYTES: Final = 32 * 1024 * 1024
"""Quota of batches beyond the first: 64 of the largest."""
_PART_OF_TAKEN: Final = 4
"""A batch is at most a quarter of the bytes that the client has taken."""


class UnsentBytes:
    """Bytes that wait for the sockets of all connections; used in the loop's thread only."""

    def __init__(self, quota_bytes: int = UNSENT_QUOTA_BYTES) -> None:
        self._quota_bytes = quota_bytes
        self.total_bytes = 0

    def batch_bytes(self, drained_bytes: int) -> int:
        """Return the batch size for a client whose socket has taken ``drained_bytes`` so far."""
        wanted = min(LARGEST_BATCH_BYTES, drained_bytes // _PART_OF_TAKEN)
        return max(FIRST_BATCH_BYTES, min(wanted, self._quota_bytes - self.total_bytes))

    def add(self, batch_bytes: int) -> None:
        self.total_bytes += batch_bytes

    def remove(self, batch_bytes: int) -> None:
        self.total_bytes -= batch_bytes
