"""A table in a folder of this machine."""

import logging
import os
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import uuid4

import pyarrow as pa

from dcp.lake.store.table_location import (
    DELTA_LOG,
    DELTA_LOG_FILE,
    LEFT_OVER_SECONDS,
    CommitFile,
    TableLocation,
    commit_name,
)

_LOGGER = logging.getLogger(__name__)
# By folder. Spark's commit in a folder looks for the version's file, then renames its own file onto
# that name. This lock keeps our commits out of the gap; it cannot stop a foreign Spark.
_commit_locks: Final[dict[str, Lock]] = {}


@dataclass(frozen=True, slots=True)
class FolderLocation(TableLocation):
    is_remote = False
    path: Path

    @property
    def uri(self) -> str:
        return str(self.path)

    def has_delta_log(self) -> bool:
        """Return whether the Delta log has a visible file.

        A Delta log with hidden files only is being made, or its driver died.
        """
        delta_log = self.path / DELTA_LOG
        return delta_log.is_dir() and any(
            DELTA_LOG_FILE.fullmatch(each.name) for each in delta_log.iterdir()
        )

    def has_data(self) -> bool:
        return any(self.path.rglob("*.parquet"))

    def commits_from(self, version: int) -> dict[int, Hashable]:
        found: dict[int, Hashable] = {}
        for each in count(version):
            try:
                told = self._commit_file(each).stat()
            except FileNotFoundError:
                return found
            found[each] = told.st_ino, told.st_mtime_ns
        return found

    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
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
        path = self.path / name
        try:
            with pa.OSFile(str(path), "wb") as file:
                yield file
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def put(self, name: str, content: bytes) -> None:
        # Renaming is atomic: readers see the old file or the new one.
        beside = self.path / f".{name}.{uuid4()}.tmp"
        try:
            beside.write_bytes(content)
            beside.replace(self.path / name)
        finally:
            beside.unlink(missing_ok=True)

    def get(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def sizes_of(self, names: Sequence[str]) -> list[int | None]:
        def size(path: Path) -> int | None:
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

        return [size(self.path / name) for name in names]

    def can_commit(self) -> bool:
        """Return whether the Delta log's folder allows links. It makes the folder."""
        first, second = (self.path / DELTA_LOG / f".{uuid4()}.tmp" for _ in range(2))
        try:
            first.parent.mkdir(parents=True, exist_ok=True)
            first.touch()
            os.link(first, second)
        except OSError as failure:
            _LOGGER.info("%s: %s; Spark writes to the table", self.path, failure)
            return False
        finally:
            for made in (first, second):
                with suppress(OSError):
                    made.unlink(missing_ok=True)
        return True

    def commit(self, version: int, content: bytes) -> None:
        """Link a finished file to the commit's name, because a link never overwrites."""
        file = self._commit_file(version)
        beside = file.with_name(f".{file.name}.{uuid4()}.tmp")
        try:
            beside.write_bytes(content)
            with self.commits_blocked():
                os.link(beside, file)
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    def commits_blocked(self) -> AbstractContextManager[object]:
        """Lock the folder: Spark's commits in a folder may overwrite ours."""
        return _commit_locks.setdefault(str(self.path), Lock())

    def prepare_checkpoint(self) -> None:
        """Also remove the old ``_last_checkpoint`` checksum.

        Otherwise Hadoop compares the new file with it, and Spark takes the file for damaged.
        """
        (self.path / DELTA_LOG / "._last_checkpoint.crc").unlink(missing_ok=True)
        self.tidy_delta_log()

    def tidy_delta_log(self) -> None:
        for each in (self.path / DELTA_LOG).glob(".*.tmp"):
            with suppress(FileNotFoundError):  # another process has removed it
                if time.time() - each.stat().st_mtime > LEFT_OVER_SECONDS:
                    each.unlink()

    def _commit_file(self, version: int) -> Path:
        return self.path / DELTA_LOG / commit_name(version)
