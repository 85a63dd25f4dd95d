"""Places of tables that delta-rs reads: folders of this machine, and prefixes of object stores."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LOG: Final = "_delta_log"

_COMMIT: Final = re.compile(r"\d{20}\.json")

_OF_CLIENT: Final = ("allow_http", "connect_timeout", "timeout")
"""Options that obstore takes apart from those of the store."""

_RETRIES: Final = "3"

_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class CommitFile:
    """The file of a commit, and when it was written."""

    version: int
    milliseconds: int
    content: bytes


class TablePlace(ABC):
    """The place of one table, which need not be there.

    Each method raises what delta-rs or the store raises where it cannot be read.
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

    @abstractmethod
    def has_log(self) -> bool:
        """Return whether there is a Delta log, perhaps a damaged one."""

    @abstractmethod
    def has_data(self) -> bool:
        """Return whether there are files of rows."""

    @abstractmethod
    def newest_commit(self, version: int) -> Hashable | None:
        """Return the identity of a commit's file; None where it is gone, or a later one is there.

        A table that was made anew has others.
        """

    @abstractmethod
    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
        """Yield the files of commits, up to the first that is gone."""

    def open(self, version: int | None = None) -> StoredTable:
        """Read the log up to a version, or to the newest one."""
        return StoredTable(self.uri, version=version, storage_options=self.options)


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
        """Return whether there is a Delta log, perhaps a damaged one."""
        return (self.path / LOG).is_dir()

    def has_data(self) -> bool:
        """Return whether there are files of rows."""
        return any(self.path.rglob("*.parquet"))

    def newest_commit(self, version: int) -> Hashable | None:
        """Return the identity of a commit's file; None where it is gone, or a later one is there.

        A table that was made anew has others.
        """
        try:
            found = self._commit_file(version).stat()
        except FileNotFoundError:
            return None
        if self._commit_file(version + 1).exists():
            return None
        return found.st_ino, found.st_mtime_ns

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

    def _commit_file(self, version: int) -> Path:
        return self.path / LOG / _commit_name(version)


@dataclass(frozen=True)
class ObjectPlace(TablePlace):
    """A prefix of an object store, by its URL; ``way`` are the options that open it."""

    url: str
    way: Mapping[str, str] = field(repr=False, compare=False)

    @property
    def uri(self) -> str:
        """The place as delta-rs and Polars name it."""
        return self.url

    @property
    def folder(self) -> None:
        """None: it is on no machine."""
        return

    @property
    def options(self) -> dict[str, str]:
        """The options by which delta-rs and Polars open it; they hold secrets."""
        return dict(self.way)

    @cached_property
    def _store(self) -> "ObjectStore":
        from obstore import store  # not where all is on this machine

        config = self.options
        client = {name: config.pop(name) for name in _OF_CLIENT if name in config}
        retries = int(config.pop("max_retries", _RETRIES))
        open_store: Any = store.from_url  # its types ask for the options of one kind of store
        opened: ObjectStore = open_store(
            self.url, config=config, client_options=client, retry_config={"max_retries": retries}
        )
        return opened

    def has_log(self) -> bool:
        """Return whether there is a Delta log, perhaps a damaged one.

        What connectors leave to mark a folder, an object without content, is none.
        """
        return any(path != LOG for path in self._first_below(LOG))

    def has_data(self) -> bool:
        """Return whether there are files of rows, as far as a first look tells."""
        return any(path.endswith(".parquet") for path in self._first_below(None))

    def newest_commit(self, version: int) -> Hashable | None:
        """Return the identity of a commit's file; None where it is gone, or a later one is there.

        A table that was made anew has others.
        """
        import obstore

        name = _commit_name(version)
        just_before = f"{LOG}/{name[:-1]}"
        listed = obstore.list(self._store, LOG, offset=just_before).collect()
        commits = [each for each in listed if _COMMIT.fullmatch(each["path"].rpartition("/")[2])]
        if len(commits) != 1 or not commits[0]["path"].endswith(name):
            return None
        return commits[0]["e_tag"], commits[0]["last_modified"]

    def read_commits(self, versions: Iterable[int]) -> Iterator[CommitFile]:
        """Yield the files of commits, up to the first that is gone.

        Some are asked for at once.
        """
        import obstore

        def read(version: int) -> CommitFile | None:
            try:
                found = obstore.get(self._store, f"{LOG}/{_commit_name(version)}")
                written = found.meta["last_modified"].timestamp()
                return CommitFile(version, int(written * 1000), bytes(found.bytes()))
            except FileNotFoundError:
                return None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            rest = iter(versions)
            while few := list(islice(rest, _AT_ONCE)):
                for found in pool.map(read, few):
                    if found is None:
                        return
                    yield found

    def _first_below(self, prefix: str | None) -> list[str]:
        import obstore

        first = next(iter(obstore.list(self._store, prefix, chunk_size=1000)), ())
        return [each["path"] for each in first]


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"
