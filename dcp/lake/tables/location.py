"""The place of a lake: a folder or prefix, or a schema of a catalog."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dcp.lake.config.lake_root import is_on_s3, local_root
from dcp.lake.store.folder_place import FolderPlace
from dcp.lake.store.object_place import ObjectPlace
from dcp.lake.store.place import TablePlace
from dcp.lake.store.remembered_table import RememberedTable
from dcp.lake.tables.lake_table import LakeTable
from dcp.lake.tables.spark_table import StartSpark
from dcp.lake.tables.sql import dotted, quoted

_UNREADABLE: Final = frozenset("%\\")
"""Characters of a path that delta-rs decodes; Spark reads and writes such a lake."""


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """The place of a lake's tables: exactly one of a folder and a catalog schema.

    A folder on this machine is made absolute, with ``~`` resolved, as its lock file's is.
    ``options`` are those by which delta-rs opens a store elsewhere; without them Spark does.
    """

    root: str | None = None
    schema: str | None = None
    options: Mapping[str, str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Reject both and neither, and resolve the folder."""
        if (self.root is None) == (self.schema is None):
            raise ValueError(
                f"lake location: found root {self.root!r} and schema {self.schema!r}, "
                "expected exactly one of them"
            )
        folder = None if self.root is None else local_root(self.root)
        if folder is not None and not str(self.root).startswith("file:"):
            object.__setattr__(self, "root", str(folder.absolute()))

    def __str__(self) -> str:
        """Name the place, for messages."""
        return self.root if self.root is not None else f"schema {self.schema}"

    def path(self, table: str) -> str:
        """Return the path of a table of a folder lake."""
        assert self.root is not None
        return f"{self.root.rstrip('/')}/{table}"

    def spark_path(self, table: str) -> str:
        """Return the same for Spark, whose default may be another file system than this machine's.

        No URI: Hadoop would take its %20 for a name.
        """
        path = self.path(table)
        return f"file:{path}" if path.startswith("/") else path

    def table_sql(self, table: str) -> str:
        """Return the SQL name of a table."""
        if self.schema is not None:
            return f"{dotted(self.schema)}.{quoted(table)}"
        return f"delta.{quoted(self.spark_path(table))}"

    def table(
        self,
        name: str,
        start_spark: StartSpark,
        remembered: dict[str, RememberedTable] | None = None,
    ) -> LakeTable:
        """Return a table of a lake at this place, which need not be there."""
        path = None if self.root is None else self.spark_path(name)
        place = self._place(name)
        where, known = f"{self}: table {name}", {} if remembered is None else remembered
        return LakeTable(self.table_sql(name), where, place, start_spark, path, known)

    def _place(self, name: str) -> TablePlace | None:
        """Return where delta-rs finds a table; None where only Spark does."""
        if self.root is None:
            return None
        path = self.path(name)
        folder = local_root(path)
        if _UNREADABLE & set(path if folder is None else str(folder)):
            return None  # delta-rs would take it for the name of another folder
        if folder is not None:
            return FolderPlace(folder)
        if self.options is None:
            return None
        url = f"s3://{path.partition('://')[2]}" if is_on_s3(path) else path
        return ObjectPlace(url, self.options)
