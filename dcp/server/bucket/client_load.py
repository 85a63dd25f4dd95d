from dcp.server.bucket.large_frames import LargeFrames
from dcp.server.bucket.unsent_bytes import UnsentBytes


class ClientLoad:
    """Number and memory of client connections, for all nodes of this process together.

    Only the loop's thread changes it; any thread may read ``connections``.
    """

    def __init__(self, large_frame_seconds: float) -> None:
        self.connections = 0
        self.unsent = UnsentBytes()
        self.large_frames = LargeFrames(large_frame_seconds)

    def connected(self) -> None:
        self.connections += 1

    def disconnected(self) -> None:
        self.connections -= 1
