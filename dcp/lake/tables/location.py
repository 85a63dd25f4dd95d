"""The place of a lake: a folder or prefix, or a schema of a catalog."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from dcp.errors import SetupError, StoreUnavailableError
from dcp.lake.config.lake_root import checked_root, is_on_s3, local_root, parts_of
from dcp.lake.config.storage_options import LOG_STORE
from dcp.lake.spark.session import log_store_of
from dcp.lake.store.folder_place import FolderPlace
from dcp.lake.store.object_place import ObjectPlace
from dcp.lake.store.place import Located, TablePlace
from dcp.lake.store.remembered_table import RememberedTables
from dcp.lake.tables.file_table import leave_to_spark
from dcp.lake.tables.lake_table import LakeTable
from dcp.lake.tables.spark_table import StartSpark
from dcp.lake.tables.sql import dotted, quoted

_UNREADABLE: Final = frozenset("%\\")
"""delta-rs decodes these characters of a path; Spark reads and writes such a lake."""

WayToStore = Callable[[str], Mapping[str, str] | None]
"""Returns the options by which delta-rs opens a bucket, by its URL; None if only Spark can."""

_LOG = logging.getLogger(__name__)


def _only_spark(_: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """The place of a lake's tables: exactly one of a folder and a catalog schema.

    A folder on this machine is absolute, with ``~`` resolved, as its lock file's is.
    """

    root: str | None = None
    schema: str | None = None
    way: WayToStore = field(default=_only_spark, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.root is None) == (self.schema is None):
            raise ValueError(
                f"lake location: found root {self.root!r} and schema {self.schema!r}, "
                "expected exactly one of them"
            )
        if self.root is not None:
            folder = local_root(self.root)
            root = checked_root(self.root) if folder is None else str(folder.absolute())
            object.__setattr__(self, "root", root)

    def __str__(self) -> str:
        return self.root if self.root is not None else f"schema {self.schema}"

    def path(self, table: str) -> str:
        assert self.root is not None
        return f"{self.root.rstrip('/')}/{table}"

    def spark_path(self, table: str) -> str:
        """Return the same for Spark, whose default may be another file system.

        No URI: Hadoop would take its %20 for a name.
        """
        path = self.path(table)
        return f"file:{path}" if path.startswith("/") else path

    def table_sql(self, table: str) -> str:
        if self.schema is not None:
            return f"{dotted(self.schema)}.{quoted(table)}"
        return f"delta.{quoted(self.spark_path(table))}"

    def table(
        self,
        name: str,
        start_spark: StartSpark,
        remembered: RememberedTables | None = None,
        located: dict[str, Located] | None = None,
    ) -> LakeTable:
        """Return a table of a lake at this place, which need not exist.

        ``remembered`` and ``located`` are an open lake's knowledge of its tables (`LakeTable`).
        """
        return LakeTable(
            self.table_sql(name),
            f"{self}: table {name}",
            start_spark,
            None if self.root is None else self.spark_path(name),
            partial(self._look_up, name),
            remembered or RememberedTables(),
            {} if located is None else located,
        )

    def _look_up(self, name: str, table: LakeTable) -> Located | None:
        if self.schema is not None:
            return self._look_up_in_catalog(self.schema, name, table)
        path = self.path(name)
        place = self._place(Path(path) if path.startswith("/") else path)
        return Located(self.spark_path(name), place)

    def _look_up_in_catalog(self, schema: str, name: str, table: LakeTable) -> Located | None:
        if (location := table.location_in(schema, name)) is None:
            return None
        scheme, _, path = location.partition(":")
        found = None
        try:
            place = self._place(Path(path) if scheme == "file" else location)
            if place is not None and table.files_at(place).exists():
                found = place
        except Exception as failure:  # of many classes, not all of them documented
            try:
                leave_to_spark(failure, table.where)
            except StoreUnavailableError:  # what is there is not known then
                raise
            except SetupError as refusal:  # a catalog may lend Spark other credentials
                _LOG.debug("%s: %s", table.where, refusal)
        if found is not None and is_on_s3(location):
            found = found if log_store_of(table.start_spark(), location) == LOG_STORE else None
        if found is None:
            _LOG.debug("%s: only Spark reads %s", table.where, location)
        return Located(location, found)

    def _place(self, where: str | Path) -> TablePlace | None:
        """Return the place for delta-rs; None if only Spark finds the table."""
        if _UNREADABLE & set(str(where)):
            return None  # delta-rs would take it for the name of another folder
        if isinstance(where, Path):
            return FolderPlace(where)
        scheme, bucket, path = parts_of(where)
        if (way := self.way(f"{scheme}://{bucket}")) is None:
            return None
        return ObjectPlace(f"s3://{bucket}/{path}" if is_on_s3(where) else where, way)
