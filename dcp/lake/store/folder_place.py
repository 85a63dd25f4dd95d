"""A table in a folder of this machine."""

import logging
import os
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa

from dcp.lake.store.place import LOG, CommitFile, TablePlace, commit_name

_LEFT_OVER_SECONDS: Final = 24 * 3600.0
"""After that time a commit that was not linked is one of a process that was killed."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FolderPlace(TablePlace):
    """A folder of this machine."""

    path: Path

    @property
    def uri(self) -> str:
        """The place as delta-rs and Polars name it."""
        return str(self.path)

    @property
    def folder(self) -> Path:
        """The table's folder."""
        return self.path

    def has_log(self) -> bool:
        """Return whether there is a Delta log, perhaps a damaged one.

        One that has only hidden files is of a driver that makes the table, or died as it did.
        """
        log = self.path / LOG
        return log.is_dir() and any(
            each.is_file() and not each.name.startswith(".") for each in log.iterdir()
        )

    def has_data(self) -> bool:
        """Return whether there are files of rows."""
        return any(self.path.rglob("*.parquet"))

    def commits_from(self, version: int) -> dict[int, Hashable]:
        """Return the identities of the files of a commit, and of all later ones, by version.

        A table that was made anew has others.
        """
        found: dict[int, Hashable] = {}
        for each in count(version):
            try:
                told = self._commit_file(each).stat()
            except FileNotFoundError:
                return found
            found[each] = told.st_ino, told.st_mtime_ns
        return found

    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
        """Yield the files of commits, up to the first that is gone."""
        for version in versions:
            try:
                with self._commit_file(version).open("rb") as file:
                    written = os.fstat(file.fileno()).st_mtime_ns
                    content = file.read()
            except FileNotFoundError:
                return
            yield CommitFile(version, written // 1_000_000, content)

    @contextmanager
    def writing(self, name: str, part_bytes: int) -> Iterator[pa.NativeFile]:
        """Give a new file of the table; where the block ends by an error, none of it stays."""
        path = self.path / name
        try:
            with pa.OSFile(str(path), "wb") as file:
                yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def sizes_of(self, names: Sequence[str]) -> list[int | None]:
        """Return the bytes of files of the table; None for those that are not there."""

        def size(path: Path) -> int | None:
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

        return [size(self.path / name) for name in names]

    def can_commit(self) -> bool:
        """Return whether files can be linked in the log, which is made where there is none.

        On some mounted stores they cannot.
        """
        first, second = (self.path / LOG / f".{uuid4()}.tmp" for _ in range(2))
        try:
            first.parent.mkdir(parents=True, exist_ok=True)
            first.touch()
            os.link(first, second)
        except OSError as failure:
            _LOG.info("%s: %s; Spark writes to the table", self.path, failure)
            return False
        finally:
            for made in (first, second):
                with suppress(OSError):
                    made.unlink(missing_ok=True)
        return True

    def commit(self, version: int, content: bytes) -> None:
        """Write the file of a commit beside its place, and link it there, which never overwrites.

        Raises:
            FileExistsError: another commit has that version.

        """
        place = self._commit_file(version)
        beside = place.with_name(f".{place.name}.{uuid4()}.tmp")
        try:
            beside.write_bytes(content)
            os.link(beside, place)
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def tidy_log(self) -> None:
        """Remove the checksum of the last checkpoint, and commits that were never linked.

        Hadoop's checksum would be of a file that is replaced: Spark would take it for damaged.
        """
        log = self.path / LOG
        (log / "._last_checkpoint.crc").unlink(missing_ok=True)
        for each in log.glob(".*.tmp"):
            with suppress(FileNotFoundError):  # another process has just linked it
                if time.time() - each.stat().st_mtime > _LEFT_OVER_SECONDS:
                    each.unlink()

    def _commit_file(self, version: int) -> Path:
        return self.path / LOG / commit_name(version)
