"""Tries whether an object store refuses to overwrite: every commit relies on it."""

from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dcp.errors import LakeError
from dcp.lake.spark.failures import UNSAFE_STORE

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CONTENT: Final = b"dcplake tries conditional writes\n"
_UNKNOWN: Final = "501 Not Implemented"
"""What a server answers that does not know the condition."""

_safe: "Final[list[ObjectStore]]" = []
"""Stores that were tried; each is opened once in a process."""


def require_conditional_writes(store: "ObjectStore", folder: str, where: str) -> None:
    """Write a file below a folder, and try to overwrite it; each store is tried once.

    Raises:
        LakeError: it overwrites, or does not know the condition; ``where`` names it.

    """
    import obstore

    if any(each is store for each in _safe):
        return
    probe = f"{folder}/.{uuid4()}.dcplake-probe"
    try:
        obstore.put(store, probe, _CONTENT, mode="create")
        if not _is_refused(store, probe):
            raise LakeError(f"{where}: {UNSAFE_STORE}")
    except obstore.exceptions.BaseError as failure:
        if _UNKNOWN in str(failure):
            raise LakeError(f"{where}: {UNSAFE_STORE}") from failure
        raise
    finally:
        obstore.delete(store, probe)
    _safe.append(store)


def _is_refused(store: "ObjectStore", path: str) -> bool:
    import obstore

    try:
        obstore.put(store, path, _CONTENT, mode="create")
    except obstore.exceptions.AlreadyExistsError:
        return True
    return False
