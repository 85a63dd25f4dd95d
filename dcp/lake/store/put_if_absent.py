"""Writes an object where none is: of all who try, the store lets one."""

from time import sleep
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PAUSES_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Before each further attempt. S3 answers 409 while another request for the same key is on its way,
and asks to try again ("Conditional writes" in Amazon's user guide).
"""


def put_if_absent(store: "ObjectStore", path: str, content: bytes) -> None:
    """Write an object unless one is there with other content.

    Raises:
        FileExistsError: there is one.
        Exception: of obstore; perhaps after the object was written.
    """
    import obstore  # not where all is on this machine
    from obstore.exceptions import AlreadyExistsError

    for pause_seconds in (*_PAUSES_SECONDS, None):
        try:
            obstore.put(store, path, content, mode="create")
            return
        except AlreadyExistsError as refusal:
            # The status may be 412 or 409, and the content our own: where obstore heard no answer,
            # it asked again.
            found = content_of(store, path)
            if found == content:
                return
            if found is not None:
                raise FileExistsError(path) from refusal
            if pause_seconds is None:
                raise
        sleep(pause_seconds)


def content_of(store: "ObjectStore", path: str) -> bytes | None:
    """Return an object's bytes; None if there is none."""
    import obstore

    try:
        return bytes(obstore.get(store, path).bytes())
    except FileNotFoundError:
        return None
