"""Bounds the encoded bytes that no socket has taken: a first batch each, and a common quota.

A client that does not read holds the batch that was made for it, as long as it likes. So a batch is
as large as a part of what its client has taken so far, and all batches that are larger than a first
one share a quota: who finds it used up goes on with first batches. However many clients are silent,
the others never wait for them.

    held by all   <=   UNSENT_QUOTA_BYTES + connections * (FIRST_BATCH_BYTES + one message)
"""

from typing import Final

FIRST_BATCH_BYTES: Final = 16 * 1024
"""What is encoded for a client that has taken nothing yet, and for any where the quota is used."""
LARGEST_BATCH_BYTES: Final = 512 * 1024
UNSENT_QUOTA_BYTES: Final = 32 * 1024 * 1024
"""What larger batches share: as many as 64 of the largest."""
_PART_OF_TAKEN: Final = 4


class UnsentBytes:
    """The bytes that wait for the sockets of all connections; used in the loop's thread."""

    def __init__(self, quota_bytes: int = UNSENT_QUOTA_BYTES) -> None:
        self._quota_bytes = quota_bytes
        self.held_bytes = 0

    def batch_bytes(self, taken_bytes: int) -> int:
        """Return how much to encode for a client that has taken so many bytes."""
        wanted = min(LARGEST_BATCH_BYTES, taken_bytes // _PART_OF_TAKEN)
        return max(FIRST_BATCH_BYTES, min(wanted, self._quota_bytes - self.held_bytes))

    def hold(self, batch_bytes: int) -> None:
        """Count a batch that is about to be sent."""
        self.held_bytes += batch_bytes

    def release(self, batch_bytes: int) -> None:
        """Count it no more: the socket took it, or the connection is over."""
        self.held_bytes -= batch_bytes
