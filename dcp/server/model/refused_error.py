from dcp.errors import DcplakeError
from dcp.wire.vocabulary import Status


class RefusedError(DcplakeError):
    """A request is refused: ``status`` goes into the answer, and the message says why."""

    def __init__(self, status: Status, message: str = "") -> None:
        super().__init__(message)
        self.status = status
