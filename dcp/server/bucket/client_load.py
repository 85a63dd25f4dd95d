"""Number and memory of client connections, for all nodes of a process together.

The encoded bytes that no socket has taken yet are bounded. A client that does not read keeps its
encoded batch as long as it likes. Each client may have a first batch. Larger batches grow with the
bytes that the client has taken, and share a quota; if the quota is used up, clients get first
batches. Silent clients therefore never make others wait.

    unsent of all   <=   UNSENT_QUOTA_BYTES + connections * (FIRST_BATCH_BYTES + one message)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dcp.server.bucket.large_frames import LargeFrames

FIRST_BATCH_BYTES: Final = 16 * 1024
"""Size of the batch for a client that has taken nothing yet, or while the quota is used up."""
LARGEST_BATCH_BYTES: Final = 512 * 1024
UNSENT_QUOTA_BYTES: Final = 32 * 1024 * 1024
"""Quota of batches beyond the first: 64 of the largest."""
_PART_OF_TAKEN: Final = 4
"""A batch is at most a quarter of the bytes that the client has taken."""


class ClientLoad:
    """The connections of clients, and the memory that they take.

    Only the loop's thread changes it; any thread may read ``connections``.
    """

    def __init__(
        self, large_frame_seconds: float, unsent_quota_bytes: int = UNSENT_QUOTA_BYTES
    ) -> None:
        self.connections = 0
        self.unsent_bytes = 0
        """Encoded bytes that wait for the sockets of all connections."""
        self.large_frames = LargeFrames(large_frame_seconds)
        self._unsent_quota_bytes = unsent_quota_bytes

    def connected(self) -> None:
        self.connections += 1

    def disconnected(self) -> None:
        self.connections -= 1

    def batch_bytes(self, drained_bytes: int) -> int:
        """Return the batch size for a client whose socket has taken ``drained_bytes`` so far."""
        wanted = min(LARGEST_BATCH_BYTES, drained_bytes // _PART_OF_TAKEN)
        return max(FIRST_BATCH_BYTES, min(wanted, self._unsent_quota_bytes - self.unsent_bytes))

    @contextmanager
    def sending(self, batch_bytes: int) -> Iterator[None]:
        """Count a batch as unsent while the block gives it to the socket."""
        self.unsent_bytes += batch_bytes
        try:
            yield
        finally:
            self.unsent_bytes -= batch_bytes
