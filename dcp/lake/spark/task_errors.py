"""Carries typed errors from a Spark task to the driver.

Spark passes only the text of a failed task's traceback to the driver. The text contains the error
as a marked line of JSON, from which the driver makes the same error again.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dcp import errors
from dcp.errors import DcplakeError

_MARK: Final = "dcplake-task-error:"
_MARKED_LINE: Final = re.compile(re.escape(_MARK) + r"(\{.*\})")


class TaskError(Exception):
    """Carries a `DcplakeError` out of a task; its message is the marked line."""

    def __init__(self, error: DcplakeError) -> None:
        super().__init__(_MARK + json.dumps({"type": type(error).__name__, "message": str(error)}))


@contextmanager
def carried_errors() -> Iterator[None]:
    """Raise each `DcplakeError` as the `TaskError` that carries it to the driver."""
    try:
        yield
    except DcplakeError as error:
        raise TaskError(error) from None


def original_error(told: str) -> DcplakeError | None:
    """Return the error in the text of a failed task; None if the text contains none."""
    match = _MARKED_LINE.search(told)
    if match is None:
        return None
    try:
        carried = json.loads(match[1])
        kind, message = getattr(errors, carried["type"], None), carried["message"]
    except (ValueError, KeyError):
        return None
    if not (isinstance(kind, type) and issubclass(kind, DcplakeError)):
        kind = DcplakeError
    return kind(message)
