"""A file that grows at its end and can be replaced, on disk or in memory.

The disk file is opened per operation, so that a thousand vbuckets hold no descriptors. When a call
returns, the change is durable. After a crash an append may be there in part; a replacement is
complete or absent.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Final, Protocol

Data = bytes | bytearray | memoryview
"""Bytes; a memoryview must have items of one byte."""
Extent = tuple[int, int]
"""Offset and length in bytes."""
ReadEach = Callable[[Sequence[Extent]], list[Data]]
"""Reads several extents of a file."""

_COALESCED_BYTES: Final = 64 * 1024
"""``MemoryFile`` joins smaller parts, so that it holds few objects."""
_OWNER_ONLY: Final = 0o600


class DiskFile(Protocol):
    """The storage's view of a file, on disk or in memory."""

    @property
    def may_decay(self) -> bool:
        """True for a disk, which may return damaged bytes."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, size: int) -> Data:
        """Return exactly ``size`` bytes, which must not be changed.

        Raises OSError if the file is shorter or cannot be read.
        """
        ...

    def read_each(self, extents: Sequence[Extent]) -> list[Data]:
        """Read several extents; this opens the file only once."""
        ...

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        """Write at ``offset`` and drop everything behind it; the file must exist.

        After an error or a crash any part of the new bytes may be there.
        """
        ...

    def replace(self, parts: Iterable[Data]) -> None:
        """Create the file or replace its content: durably, all or nothing.

        ``parts`` may read the old content while they are written.
        """
        ...

    def pinned(self) -> AbstractContextManager[ReadEach]:
        """Yield what reads the present content, whatever happens to the file meanwhile."""
        ...


class OsFile:
    """A file in an existing folder; one process may write it, and only its owner can read it."""

    may_decay = True

    def __init__(self, path: Path) -> None:
        """Also remove the draft of a replacement that a crash interrupted."""
        self._path = path
        self._draft = path.with_name(path.name + ".new")
        self._draft.unlink(missing_ok=True)
        self._is_name_new = False

    def __str__(self) -> str:
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self, offset: int, size: int) -> Data:
        return self.read_each([(offset, size)])[0]

    def read_each(self, extents: Sequence[Extent]) -> list[Data]:
        with _naming(self._path), self._path.open("rb", buffering=0) as file:
            return _read_each(file, extents)

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        with _naming(self._path), self._path.open("r+b") as file:
            # The last rename may have failed to become durable; then this append would vanish with
            # the name.
            if self._is_name_new:
                self._sync_name()
            # Bytes behind ``offset`` are a batch that failed or was cut short.
            file.truncate(offset)
            file.seek(offset)
            _write(file, parts)

    def replace(self, parts: Iterable[Data]) -> None:
        with _naming(self._path):
            try:
                # Set the permissions before the first byte: the draft has documents.
                self._draft.touch(_OWNER_ONLY)
                with self._draft.open("wb") as file:
                    _write(file, parts)
                self._draft.replace(self._path)
            except OSError:
                self._draft.unlink(missing_ok=True)
                raise
            self._is_name_new = True
            self._sync_name()

    def _sync_name(self) -> None:
        # A rename is durable only after an fsync of its folder.
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._is_name_new = False

    def remove(self) -> None:
        """Remove the file if it exists; pinned readers continue.

        The removal is not durable: after a power loss the file may be back.
        """
        with _naming(self._path):
            self._path.unlink(missing_ok=True)

    @contextmanager
    def pinned(self) -> Iterator[ReadEach]:
        """Keep the file open: it stays readable after a replacement of its name."""
        with self._path.open("rb", buffering=0) as file:
            yield partial(_read_each, file)


def _read_each(file: IO[bytes], extents: Sequence[Extent]) -> list[Data]:
    return [_read(file, offset, size) for offset, size in extents]


def _read(file: IO[bytes], offset: int, size: int) -> bytes:
    data = os.pread(file.fileno(), size, offset)
    # Linux reads at most 2 GiB per call.
    while len(data) < size:
        more = os.pread(file.fileno(), size - len(data), offset + len(data))
        if not more:
            raise _too_short(file.name, len(data), offset, size)
        data += more
    return data


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError of an open file, such as "no space left", which has none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def _too_short(file: object, found: int, offset: int, size: int) -> OSError:
    return OSError(f"{file}: found {found} bytes at {offset}, expected {size}")


def _write(file: IO[bytes], parts: Iterable[Data]) -> None:
    file.writelines(parts)
    file.flush()
    os.fsync(file.fileno())


class MemoryFile:
    """A file without a data folder; it lives as long as the object.

    ``append`` keeps large parts without a copy, so nobody may change them afterwards.
    """

    may_decay = False

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[Data] = []
        self.size_bytes = 0

    def __str__(self) -> str:
        return "memory"

    def read(self, offset: int, size: int) -> Data:
        """Return bytes, without a copy if they lie in one part."""
        if offset + size > self.size_bytes:
            raise _too_short(self, self.size_bytes - offset, offset, size)
        index = bisect_right(self._starts, offset) - 1
        found: list[Data] = []
        while size > 0:
            at = offset - self._starts[index]
            found.append(memoryview(self._parts[index])[at : at + size])
            size -= len(found[-1])
            offset += len(found[-1])
            index += 1
        return found[0] if len(found) == 1 else b"".join(found)

    def read_each(self, extents: Sequence[Extent]) -> list[Data]:
        return [self.read(offset, size) for offset, size in extents]

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        left = bisect_right(self._starts, offset - 1)
        del self._starts[left:], self._parts[left:]
        if left and offset < self._starts[-1] + len(self._parts[-1]):
            self._parts[-1] = memoryview(self._parts[-1])[: offset - self._starts[-1]]
        self.size_bytes = offset
        small: list[Data] = []
        for part in parts:
            if len(part) < _COALESCED_BYTES:
                small.append(part)
            else:
                self._add(b"".join(small))
                self._add(part)
                small = []
        self._add(b"".join(small))

    def _add(self, part: Data) -> None:
        if part:
            self._starts.append(self.size_bytes)
            self._parts.append(part)
            self.size_bytes += len(part)

    def replace(self, parts: Iterable[Data]) -> None:
        fresh = MemoryFile()
        # Parts are views into the old file; a copy lets its memory go.
        fresh.append(0, (bytes(part) for part in parts))
        self._starts, self._parts = fresh._starts, fresh._parts
        self.size_bytes = fresh.size_bytes

    def pinned(self) -> AbstractContextManager[ReadEach]:
        pinned = MemoryFile()
        pinned._starts, pinned._parts = list(self._starts), list(self._parts)
        pinned.size_bytes = self.size_bytes
        return nullcontext(pinned.read_each)
