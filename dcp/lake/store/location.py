"""The location of a lake: a folder, a prefix in an object store, or a catalog schema."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcp.errors import LakeError
from dcp.lake.config.lake_root import checked_root, is_on_s3, local_root, parts_of
from dcp.lake.store.folder_location import FolderLocation
from dcp.lake.store.object_location import ObjectLocation
from dcp.lake.store.sql import dotted, quoted
from dcp.lake.store.table_location import TableLocation

_UNREADABLE: Final = frozenset("%\\")
"""delta-rs decodes these characters in a path, so that only Spark can use such a lake."""

WayToStore = Callable[[str], Mapping[str, str] | None]
"""Returns the options with which delta-rs opens a bucket's URL; None if only Spark can open it."""


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """The location of a lake's tables: either ``root`` or ``schema``.

    A root on this machine is absolute, with ``~`` resolved, like its lock file.
    """

    root: str | None = None
    schema: str | None = None
    way: WayToStore = field(default=lambda _: None, repr=False, compare=False)

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
        """Return the path for Spark, whose default file system may be another one.

        It is not a URI, because Hadoop does not decode %20.
        """
        path = self.path(table)
        return f"file:{path}" if path.startswith("/") else path

    def table_sql(self, table: str) -> str:
        if self.schema is not None:
            return f"{dotted(self.schema)}.{quoted(table)}"
        return f"delta.{quoted(self.spark_path(table))}"

    def of_table(self, table: str) -> TableLocation | None:
        """Return the location of a table below the root; None if only Spark can open it."""
        path = self.path(table)
        return self.location_at(Path(path) if path.startswith("/") else path)

    def refuse_location_in_table(self) -> None:
        """Refuse a root inside a Delta table, whose VACUUM would remove the lake's files.

        It ignores parent folders that this user may not read.

        Raises:
            LakeError: the root is inside a table, which the message names.
        """
        table = next(filter(self._has_delta_log, self._root_and_above()), None)
        if table is not None:
            raise LakeError(
                f"lake.root: found {self.root} in the Delta table {table}, whose VACUUM removes "
                "files that are not its own; expected a location outside of tables"
            )

    def _root_and_above(self) -> Iterator[str | Path]:
        if self.root is None:
            return
        if self.root.startswith("/"):
            yield from (Path(self.root), *Path(self.root).parents)
            return
        scheme, bucket, path = parts_of(self.root)
        while path:
            yield f"{scheme}://{bucket}/{path}"
            path = path.rpartition("/")[0]

    def _has_delta_log(self, where: str | Path) -> bool:
        try:
            location = self.location_at(where)
            return location is not None and location.has_delta_log()
        except Exception:  # of many classes, some undocumented
            return False

    def location_at(self, where: str | Path) -> TableLocation | None:
        if _UNREADABLE & set(str(where)):
            return None  # delta-rs would open another folder
        if isinstance(where, Path):
            return FolderLocation(where)
        scheme, bucket, path = parts_of(where)
        if (way := self.way(f"{scheme}://{bucket}")) is None:
            return None
        return ObjectLocation(f"s3://{bucket}/{path}" if is_on_s3(where) else where, way)
