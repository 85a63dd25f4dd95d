"""A disk that takes so many writes of a data folder, and then no more."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from dcp.server.storage.disk_file import Data, OsFile


@contextmanager
def full_disk(after_writes: int = 0) -> Iterator[None]:
    """Let all writes fail but for the first ones."""
    left = [after_writes]
    append, replace = OsFile.append, OsFile.replace

    def step() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("disk full")

    def failing_append(file: OsFile, offset: int, parts: Iterable[Data]) -> None:
        step()
        append(file, offset, parts)

    def failing_replace(file: OsFile, parts: Iterable[Data]) -> None:
        step()
        replace(file, parts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OsFile, "append", failing_append)
        patched.setattr(OsFile, "replace", failing_replace)
        yield
