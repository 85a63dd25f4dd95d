"""The place of a table: a folder of this machine, or a prefix of an object store.

Tasks write files there, the driver commits them, and delta-rs reads the table, each by a place. It
holds no secrets, so it may travel to tasks: whoever opens the store looks for them where it runs.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

    from dcp.lake.store.trial import StoreTrial

DELTA_LOG: Final = "_delta_log"

DELTA_LOG_FILE: Final = re.compile(r"\d{20}\..*|_last_checkpoint")
"""Names of files that make a folder a Delta log; hidden and foreign ones do not."""

LEFT_OVER_SECONDS: Final = 24 * 3600.0
"""An older temporary file of a log belongs to a killed process."""


@dataclass(frozen=True, slots=True)
class CommitFile:
    version: int
    milliseconds: int
    content: bytes


class TablePlace(ABC):
    """The place of one table, which need not exist.

    Each method passes on the error of delta-rs or the store.
    """

    @property
    @abstractmethod
    def uri(self) -> str: ...

    @property
    @abstractmethod
    def folder(self) -> Path | None:
        """The table's folder; None in an object store."""

    @property
    def options(self) -> dict[str, str] | None:
        """Options of delta-rs and Polars, with secrets; None in a folder."""
        return None

    def __str__(self) -> str:
        return self.uri

    @abstractmethod
    def has_delta_log(self) -> bool:
        """Return whether there is a Delta log, even a damaged one."""

    @abstractmethod
    def has_data(self) -> bool: ...

    @abstractmethod
    def commits_from(self, version: int) -> dict[int, Hashable]:
        """Return the files' identities of a commit and all later ones, by version.

        A table that was made anew has others.
        """

    @abstractmethod
    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
        """Yield the commits' files; stops at the first missing one."""

    @abstractmethod
    def writing(self, name: str, part_bytes: int) -> AbstractContextManager[pa.NativeFile]:
        """Give a new file of the table; none of it stays if the block raises.

        The file can be read after the block. A store gets it in parts of ``part_bytes``.
        """

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a small file of the table at once, in place of an older one."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it is missing."""

    @abstractmethod
    def sizes_of(self, names: Sequence[str]) -> list[int | None]:
        """Return the bytes of each file; None for a missing one."""

    @abstractmethod
    def can_commit(self) -> bool:
        """Return whether `commit` can keep its promise here, by a trial with files of its own.

        Raises:
            SetupError: an object store does not answer, or refuses us.
            LakeError: an object store overwrites, so that Spark's commits are not safe either.
        """

    def trial(self) -> "StoreTrial | None":
        """Return the trials of an object store; None in a folder."""
        return None

    @abstractmethod
    def commit(self, version: int, content: bytes) -> None:
        """Write the whole file of a commit at once, or nothing.

        Raises:
            FileExistsError: another commit has that version. Of two writers one wins.
        """

    def commits_held_back(self) -> AbstractContextManager[object]:
        """Hold this process's commits back while Spark runs OPTIMIZE or ALTER TABLE.

        By default this does nothing: an object store refuses the second commit of a version.
        """
        return nullcontext()

    @abstractmethod
    def tidy_delta_log(self) -> None:
        """Remove temporary files of the log that killed processes left."""

    def prepare_checkpoint(self) -> None:  # noqa: B027 - most places need nothing
        """Remove files that would keep Spark from reading a new checkpoint, and leftovers of killed
        processes where that costs no further request.
        """

    def open(self, version: int | None = None) -> "StoredTable":
        from deltalake import DeltaTable as StoredTable  # not in tasks, which only write

        return StoredTable(self.uri, version=version, storage_options=self.options)


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class Located:
    location: str
    """As Spark names it."""
    place: TablePlace | None
    """None if only Spark can open it."""


def with_times(told: Iterable[tuple[dict[str, Any], int | None, int]]) -> list[dict[str, Any]]:
    """Return the commits with their times, newest first.

    Each item is a commit, its own time, and its file's time, in milliseconds. The returned time is
    the commit's own. The file's time replaces a missing time, and one in the future: a clock may
    have been wrong. No commit is earlier than the one before it.
    """
    least, now = -1, datetime.now(UTC).timestamp() * 1000
    commits = []
    for commit, own, of_file in sorted(told, key=lambda each: int(each[0]["version"])):
        least = max(of_file if own is None or own > now else own, least + 1)
        commits.append({**commit, "time": _utc(least), "file_time": _utc(of_file)})
    return commits[::-1]


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
