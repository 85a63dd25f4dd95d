"""The location of a table: a folder on this machine, or a prefix in an object store.

Tasks write files at a location, the driver commits them, and delta-rs reads the table. A location
holds no secrets and can travel to tasks; each process reads the secrets on its own machine.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

    from dcp.lake.store.trial import StoreTrial

DELTA_LOG: Final = "_delta_log"

DELTA_LOG_FILE: Final = re.compile(r"\d{20}\..*|_last_checkpoint")
"""The names of files that make a folder a Delta log. Hidden and foreign files do not."""

LEFT_OVER_SECONDS: Final = 24 * 3600.0
"""A Delta log's temporary file that is older belongs to a killed process."""


@dataclass(frozen=True, slots=True)
class CommitFile:
    version: int
    milliseconds: int
    content: bytes


class TableLocation(ABC):
    """The location of one table, which need not exist.

    Methods raise the errors of delta-rs or the store unchanged.
    """

    is_remote: ClassVar[bool]
    """True if each access costs a request to an object store."""

    @property
    @abstractmethod
    def uri(self) -> str: ...

    @property
    def options(self) -> dict[str, str] | None:
        """Options for delta-rs and Polars, with secrets; None in a folder."""
        return None

    def __str__(self) -> str:
        return self.uri

    @abstractmethod
    def has_delta_log(self) -> bool:
        """Return whether a Delta log exists, even a damaged one."""

    @abstractmethod
    def has_data(self) -> bool: ...

    @abstractmethod
    def commits_from(self, version: int) -> dict[int, Hashable]:
        """By version, identify the files of a commit and all later ones.

        If the table is created again, the identities differ.
        """

    @abstractmethod
    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
        """Yield the files of commits, up to the first missing one."""

    @abstractmethod
    def writing(self, name: str, part_bytes: int) -> AbstractContextManager[pa.NativeFile]:
        """Open a new file of the table. If the block raises, the file is removed.

        The file is readable after the block. An object store gets it in parts of ``part_bytes``.
        """

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write or replace a small file of the table atomically."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it is missing."""

    @abstractmethod
    def sizes_of(self, names: Sequence[str]) -> list[int | None]:
        """Return the size of each file in bytes; None for a missing one."""

    @abstractmethod
    def can_commit(self) -> bool:
        """Test, with temporary files, whether `commit` is atomic at this location.

        Raises:
            SetupError: an object store does not answer, or denies access.
            LakeError: an object store overwrites existing files, which makes Spark's commits unsafe
                as well.
        """

    def trial(self) -> "StoreTrial | None":
        """Return the tests of an object store; None in a folder."""
        return None

    @abstractmethod
    def commit(self, version: int, content: bytes) -> None:
        """Write the whole file of a commit, or nothing.

        Raises:
            FileExistsError: another commit has that version. Only one of two writers succeeds.
        """

    def commits_blocked(self) -> AbstractContextManager[object]:
        """Block this process's commits while Spark runs OPTIMIZE or ALTER TABLE.

        An object store needs no lock: it refuses the second commit of a version.
        """
        return nullcontext()

    @abstractmethod
    def tidy_delta_log(self) -> None:
        """Remove temporary files of the Delta log that killed processes left."""

    def prepare_checkpoint(self) -> None:  # noqa: B027 - most locations need nothing
        """Remove files that would keep Spark from reading a new checkpoint.

        If it costs no further request, also remove the temporary files of killed processes.
        """

    def open(self, version: int | None = None) -> "StoredTable":
        from deltalake import DeltaTable as StoredTable  # tasks only write, and do not need it

        return StoredTable(self.uri, version=version, storage_options=self.options)


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class Located:
    spark_path: str
    """The table's path for Spark."""
    location: TableLocation | None
    """None if only Spark can open the table."""


def with_times(told: Iterable[tuple[dict[str, Any], int | None, int]]) -> list[dict[str, Any]]:
    """Return the commits with their times, newest first.

    Each item is a commit, its own time and its file's time, in milliseconds. If the commit's own
    time is missing or in the future, the file's time replaces it: a clock may have been wrong. Each
    commit is later than the one before.
    """
    least, now = -1, datetime.now(UTC).timestamp() * 1000
    commits = []
    for commit, own, of_file in sorted(told, key=lambda each: int(each[0]["version"])):
        least = max(of_file if own is None or own > now else own, least + 1)
        commits.append({**commit, "time": _utc(least), "file_time": _utc(of_file)})
    return commits[::-1]


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
