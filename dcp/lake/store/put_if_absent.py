"""Writes an object where none is: of all who try, the store lets one."""

from random import random
from time import sleep
from typing import TYPE_CHECKING, Final

from dcp.client.backoff import Backoff
from dcp.errors import StoreUnavailableError
from dcp.lake.store.failures import plain_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ATTEMPTS: Final = 6
_PAUSES: Final = Backoff(0.1, 1.6, random)
"""S3 answers 409 while another request for the same key is on its way, and asks to try again
("Conditional writes" in Amazon's user guide).
"""


def put_if_absent(store: "ObjectStore", path: str, content: bytes) -> None:
    """Write an object unless one is there with other content.

    Raises:
        FileExistsError: there is one.
        StoreUnavailableError: there is one, perhaps this one, and it cannot be read.
        Exception: of obstore; perhaps after the object was written.
    """
    import obstore  # not where all is on this machine
    from obstore.exceptions import AlreadyExistsError

    for attempt in range(_ATTEMPTS):
        try:
            obstore.put(store, path, content, mode="create")
            return
        except Exception as failure:
            # What is there decides: it may be our own, where the answer was lost.
            is_refusal = isinstance(failure, AlreadyExistsError)  # the status is 412 or 409
            try:
                found = bytes(obstore.get(store, path).bytes())
            except FileNotFoundError:
                if not is_refusal or attempt == _ATTEMPTS - 1:
                    raise failure from None
            except Exception as unknown:
                if not is_refusal:
                    raise failure from None
                raise StoreUnavailableError(
                    f"{path}: the store has an object there and does not let us read it, so that "
                    f"it is not known whether it is ours: {plain_line(unknown)}"
                ) from unknown
            else:
                if found == content:
                    return
                raise FileExistsError(path) from failure
        sleep(_PAUSES.delay_seconds(attempt))
