from dcp.errors import DcplakeError
from dcp.wire.vocabulary import Status


class RefusedError(DcplakeError):
    """A request is refused: ``status`` goes into the answer.

    The message says why; some refusals have the status alone, and an empty message.
    """

    def __init__(self, status: Status, message: str = "") -> None:
        super().__init__(message)
        self.status = status
