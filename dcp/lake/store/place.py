"""The place of a table: a folder of this machine, or a prefix of an object store.

Tasks write files there, the driver commits them, and delta-rs reads the table, each by a place. It
holds no secrets, so it may travel to tasks: whoever opens the store looks for them where it runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

LOG: Final = "_delta_log"


@dataclass(frozen=True, slots=True)
class CommitFile:
    """The file of a commit, and when it was written."""

    version: int
    milliseconds: int
    content: bytes


class TablePlace(ABC):
    """The place of one table, which need not be there.

    Each method raises what delta-rs or the store raises where it cannot be read or written.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The place as delta-rs and Polars name it."""

    @property
    @abstractmethod
    def folder(self) -> Path | None:
        """The table's folder, where it is on this machine."""

    @property
    def options(self) -> dict[str, str] | None:
        """The options by which delta-rs and Polars open it; they hold secrets."""
        return None

    def __str__(self) -> str:
        """Name the place, for messages."""
        return self.uri

    @abstractmethod
    def has_log(self) -> bool:
        """Return whether there is a Delta log, perhaps a damaged one."""

    @abstractmethod
    def has_data(self) -> bool:
        """Return whether there are files of rows."""

    @abstractmethod
    def commits_from(self, version: int) -> dict[int, Hashable]:
        """Return the identities of the files of a commit, and of all later ones, by version.

        A table that was made anew has others.
        """

    @abstractmethod
    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
        """Yield the files of commits, up to the first that is gone."""

    @abstractmethod
    def writing(self, name: str, part_bytes: int) -> AbstractContextManager[pa.NativeFile]:
        """Give a new file of the table; where the block ends by an error, none of it stays.

        It can be read when the block has ended. Into a store it goes in parts of ``part_bytes``.
        """

    @abstractmethod
    def sizes_of(self, names: Sequence[str]) -> list[int | None]:
        """Return the bytes of files of the table; None for those that are not there."""

    @abstractmethod
    def can_commit(self) -> bool:
        """Return whether `commit` can keep its promise here.

        Raises:
            LakeError: it cannot, nor can Spark.

        """

    @abstractmethod
    def commit(self, version: int, content: bytes) -> None:
        """Write the file of a commit, which is there at once or not at all.

        Raises:
            FileExistsError: another commit has that version. Of two writers one wins.

        """

    @abstractmethod
    def tidy_log(self) -> None:
        """Remove from the log what keeps Spark from reading a new checkpoint, and leftovers."""

    def open(self, version: int | None = None) -> "StoredTable":
        """Read the log up to a version, or to the newest one."""
        from deltalake import DeltaTable as StoredTable  # not in tasks, which only write

        return StoredTable(self.uri, version=version, storage_options=self.options)


def commit_name(version: int) -> str:
    """Return the name of a commit's file in the log."""
    return f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class Located:
    """The place of a table, as Spark names it, and to open it; None where only Spark can."""

    location: str
    place: TablePlace | None


def in_time(told: Iterable[tuple[dict[str, Any], int | None, int]]) -> list[dict[str, Any]]:
    """Return the commits with their times, newest first.

    Each item is a commit, its own time, and its file's time. Both times are milliseconds. The
    time that is returned is the commit's own: its file's where it names none or one that is still
    to come, for a clock may have been wrong; and never before the commit before it.
    """
    least, now = -1, datetime.now(UTC).timestamp() * 1000
    commits = []
    for commit, own, of_file in sorted(told, key=lambda each: int(each[0]["version"])):
        least = max(of_file if own is None or own > now else own, least + 1)
        commits.append({**commit, "time": _utc(least), "file_time": _utc(of_file)})
    return commits[::-1]


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
