"""The number and memory of clients' connections, at all nodes of a process together."""

from dcp.server.bucket.large_frames import LargeFrames
from dcp.server.bucket.unsent_bytes import UnsentBytes


class ClientLoad:
    """Used in the loop's thread; the number may be read in any."""

    def __init__(self, large_frame_seconds: float) -> None:
        """``large_frame_seconds`` is the patience with large frames; see ``LargeFrames``."""
        self.connections = 0
        self.unsent = UnsentBytes()
        self.large_frames = LargeFrames(large_frame_seconds)

    def connected(self) -> None:
        """Count one more connection."""
        self.connections += 1

    def disconnected(self) -> None:
        """Count one less."""
        self.connections -= 1
