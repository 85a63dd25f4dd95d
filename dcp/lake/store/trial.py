"""Tests an object store as a lake uses it, with one small file that is removed afterwards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import random
from time import sleep
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dcp.client.backoff import Backoff
from dcp.errors import LakeError, StoreUnavailableError
from dcp.lake.store.failures import UNSAFE_STORE, plain_line, store_errors

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore


_ATTEMPTS: Final = 6
_PAUSES: Final = Backoff(0.1, 1.6, random)
"""S3 answers 409 during another request for the same key, and asks for a retry.

Source: "Conditional writes" in Amazon's user guide.
"""


def put_if_absent(store: "ObjectStore", path: str, content: bytes) -> None:
    """Write an object unless an object with other content exists.

    Raises:
        FileExistsError: an object with other content exists.
        StoreUnavailableError: an object exists, but cannot be read; it may be this one.
        Exception: obstore failed, perhaps after it wrote the object.
    """
    import obstore  # a lake on this machine does not need it
    from obstore.exceptions import AlreadyExistsError

    for attempt in range(_ATTEMPTS):
        try:
            obstore.put(store, path, content, mode="create")
            return
        except Exception as failure:
            # The object itself decides: it may be ours, if the store's answer was lost.
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


_CONTENT: Final = b"dcplake tries this store\n"
_CHANGED: Final = b"dcplake tried this store\n"
_UNKNOWN: Final = "501 Not Implemented"
"""The answer of a server that does not support the condition."""
_NO_SWAP: Final = "it cannot swap a file; dcplake can do without"

Trial = Callable[[], str]
"""A test; it returns its finding as text."""

_safe: "Final[list[ObjectStore]]" = []
"""The stores that passed the test in this process."""


class StoreTrial:
    """All tests of one store, in one folder.

    ``where`` names the store in messages. Each test raises SetupError if the store does not answer
    or denies access.
    """

    def __init__(self, store: "ObjectStore", folder: str, where: str) -> None:
        self._store = store
        self._folder = folder
        self._where = where
        self._probe = f"{folder}/.{uuid4()}.dcplake-probe"

    def all(self) -> dict[str, Trial]:
        """Return the tests by name, in order; the last one removes the file."""
        return {
            "store list": self.list,
            "store write": self.write,
            "store read": self.read,
            "store commit": self.refuse,
            "store swap": self.swap,
            "store delete": self.delete,
        }

    def list(self) -> str:
        import obstore

        with store_errors(self._where):
            found = next(iter(obstore.list(self._store, self._folder, chunk_size=1000)), ())
        more = " or more" if len(found) == 1000 else ""
        return f"{self._where}: listed {self._folder}, files: {len(found)}{more}"

    def write(self) -> str:
        import obstore

        with store_errors(self._where):
            try:
                put_if_absent(self._store, self._probe, _CONTENT)
            except obstore.exceptions.BaseError as failure:
                if _UNKNOWN in str(failure):
                    raise LakeError(f"{self._where}: {UNSAFE_STORE}") from failure
                raise
        return f"wrote {self._probe}"

    def read(self) -> str:
        import obstore

        with store_errors(self._where):
            found = bytes(obstore.get(self._store, self._probe).bytes())
        if found != _CONTENT:
            raise LakeError(
                f"{self._where}: found {len(found)} other bytes in {self._probe} than were written "
                "a moment ago, expected the same; keep the lake in another store"
            )
        return f"read it back, bytes: {len(found)}"

    def refuse(self) -> str:
        """Try to overwrite the file, which the store must refuse.

        Raises:
            LakeError: the store overwrites existing files.
        """
        import obstore

        with store_errors(self._where):
            try:
                obstore.put(self._store, self._probe, _CHANGED, mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return "it refused to overwrite the file"
        raise LakeError(f"{self._where}: {UNSAFE_STORE}")

    def swap(self) -> str:
        """Replace the file on the condition that it is unchanged. No commit needs this."""
        import obstore

        with store_errors(self._where):
            seen = obstore.head(self._store, self._probe)
            if seen["e_tag"] is None:
                return _NO_SWAP
            # Google compares the version, other stores the ETag.
            mode: UpdateVersion = {"e_tag": seen["e_tag"]}
            if seen["version"] is not None:
                mode["version"] = seen["version"]
            try:
                obstore.put(self._store, self._probe, _CHANGED, mode=mode)
            except (obstore.exceptions.PreconditionError, NotImplementedError):
                return _NO_SWAP
            except obstore.exceptions.BaseError as failure:
                if _UNKNOWN in str(failure):
                    return _NO_SWAP
                raise
            try:
                obstore.put(self._store, self._probe, _CONTENT, mode=mode)
            except obstore.exceptions.PreconditionError:
                return "it swapped the file once, and refused the second time"
        return "it swapped although the file had changed; dcplake can do without"

    def delete(self) -> str:
        import obstore

        with store_errors(self._where):
            obstore.delete(self._store, self._probe)
        return "removed the file"

    @contextmanager
    def cleaned(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(Exception):  # only the first failure matters
                self.delete()
            raise


def require_conditional_writes(store: "ObjectStore", trial: StoreTrial) -> None:
    """Raise unless a store refuses to overwrite. It tests each store once in a process."""
    if any(each is store for each in _safe):
        return
    with trial.cleaned():
        trial.write()
        trial.refuse()
        trial.delete()
    _safe.append(store)
