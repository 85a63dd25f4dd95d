"""File I/O of the storage: a file of bytes, on disk or in memory.

The file on disk is opened for each operation, so that a thousand vbuckets hold no descriptors.
Everything is durable when a call returns. What is appended may be there in part after a crash; a
replacement is there whole or not at all.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Protocol

Data = bytes | bytearray | memoryview
"""Bytes in a row; a memoryview has items of one byte."""
Extent = tuple[int, int]
"""Where bytes begin in a file, and how many they are."""

_COALESCED_BYTES: Final = 64 * 1024
_OWNER_ONLY: Final = 0o600


class PinnedFile(Protocol):
    """The content of a file at one time; it stays readable when the file is replaced."""

    def read_each(self, places: Sequence[Extent]) -> list[Data]:
        """Return the bytes of several places, as ``DiskFile.read_each``."""
        ...

    def close(self) -> None:
        """Let go of the bytes."""
        ...


class DiskFile(Protocol):
    """A file that grows at its end and is replaced as a whole."""

    @property
    def may_decay(self) -> bool:
        """True if damaged bytes may be read: the file is on a disk."""
        ...

    @property
    def size_bytes(self) -> int:
        """The length of the file; 0 while there is none."""
        ...

    def read(self, offset: int, size: int) -> Data:
        """Return ``size`` bytes from ``offset`` on, not to be changed.

        Raises:
            OSError: the file is shorter, or cannot be read.
        """
        ...

    def read_each(self, places: Sequence[Extent]) -> list[Data]:
        """Return the bytes of several places, as ``read``: a file is opened once for all."""
        ...

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        """Write at ``offset``, durably; what was there from it on is lost.

        The file must exist. After an error or a crash any part of it may be there.
        """
        ...

    def replace(self, parts: Iterable[Data]) -> None:
        """Make the file, or put other content in its place: durably, and all or nothing.

        ``parts`` may be read from the file while it is being replaced.
        """
        ...

    def pin(self) -> PinnedFile:
        """Return the present content, to be read whatever happens to the file."""
        ...


class OsFile:
    """A file on disk, in a folder that exists. One process at a time may write it.

    Only its owner can read it, and what is made beside it: documents are in it.
    """

    may_decay = True

    def __init__(self, path: Path) -> None:
        """Also removes what a crash while replacing left behind."""
        self._path = path
        self._draft = path.with_name(path.name + ".new")
        self._draft.unlink(missing_ok=True)
        self._is_name_new = False

    def __str__(self) -> str:
        return str(self._path)

    @property
    def size_bytes(self) -> int:
        """The length of the file; 0 while there is none."""
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self, offset: int, size: int) -> Data:
        """Return ``size`` bytes from ``offset`` on."""
        return self.read_each([(offset, size)])[0]

    def read_each(self, places: Sequence[Extent]) -> list[Data]:
        """Return the bytes of several places; the file is opened once."""
        with _naming(self._path), self._path.open("rb", buffering=0) as file:
            return [_read(file, offset, size) for offset, size in places]

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        """Write and sync at ``offset``; what was there from it on is lost."""
        with _naming(self._path), self._path.open("r+b") as file:
            if self._is_name_new:
                self._sync_name()
            file.truncate(offset)
            file.seek(offset)
            _write(file, parts)

    def replace(self, parts: Iterable[Data]) -> None:
        """Write and sync a new file beside the old one, rename it over that, sync the folder."""
        with _naming(self._path):
            try:
                self._draft.touch(_OWNER_ONLY)
                with self._draft.open("wb") as file:
                    _write(file, parts)
                self._draft.replace(self._path)
            except OSError:
                self._draft.unlink(missing_ok=True)  # a full disk must not get fuller
                raise
            self._is_name_new = True
            self._sync_name()

    def _sync_name(self) -> None:
        """Make durable that the name is that of the newest file."""
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._is_name_new = False

    def remove(self) -> None:
        """Remove the file, if it is there; whoever has it pinned reads on.

        Not durable at once: after a power loss it may be there again.
        """
        with _naming(self._path):
            self._path.unlink(missing_ok=True)

    def pin(self) -> PinnedFile:
        """Hold the file open: it is readable then even when its name is another's."""
        return _OpenFile(self._path.open("rb", buffering=0))


class _OpenFile:
    """A file that is held open."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read_each(self, places: Sequence[Extent]) -> list[Data]:
        return [_read(self._file, offset, size) for offset, size in places]

    def close(self) -> None:
        self._file.close()


def _read(file: IO[bytes], offset: int, size: int) -> bytes:
    data = os.pread(file.fileno(), size, offset)
    while len(data) < size:  # Linux reads no more than 2 GiB at once
        more = os.pread(file.fileno(), size - len(data), offset + len(data))
        if not more:
            raise _too_short(file.name, len(data), offset, size)
        data += more
    return data


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors of the system name the file: those of an open file (no space left) do not."""
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
    """A file of a cluster without a data directory: it lives as long as the object.

    Large parts that are appended are kept, not copied: nobody may change them afterwards. What
    replaces the file is copied, so that it does not keep the old bytes alive.
    """

    may_decay = False

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._parts: list[Data] = []
        self.size_bytes = 0

    def __str__(self) -> str:
        return "memory"

    def read(self, offset: int, size: int) -> Data:
        """Return ``size`` bytes from ``offset`` on, without a copy where they are of one part."""
        if offset + size > self.size_bytes:
            raise _too_short(self, self.size_bytes - offset, offset, size)
        place = bisect_right(self._starts, offset) - 1
        found: list[Data] = []
        while size > 0:
            at = offset - self._starts[place]
            found.append(memoryview(self._parts[place])[at : at + size])
            size -= len(found[-1])
            offset += len(found[-1])
            place += 1
        return found[0] if len(found) == 1 else b"".join(found)

    def read_each(self, places: Sequence[Extent]) -> list[Data]:
        """Return the bytes of several places."""
        return [self.read(offset, size) for offset, size in places]

    def append(self, offset: int, parts: Iterable[Data]) -> None:
        """Add parts at ``offset``; what was there from it on is lost."""
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
        """Take other content, copied."""
        fresh = MemoryFile()
        fresh.append(0, (bytes(part) for part in parts))
        self._starts, self._parts = fresh._starts, fresh._parts
        self.size_bytes = fresh.size_bytes

    def pin(self) -> PinnedFile:
        """Return a file of the same parts."""
        pinned = MemoryFile()
        pinned._starts, pinned._parts = list(self._starts), list(self._parts)
        pinned.size_bytes = self.size_bytes
        return pinned

    def close(self) -> None:
        """Do nothing: the bytes go with the object."""
