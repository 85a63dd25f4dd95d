"""Changes the properties of a Delta table without Spark, with the same commit as ALTER TABLE."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dcp.lake.store.file_commit import (
    attempts,
    checkpoint_if_due,
    commit_info,
    commit_lines,
    table_metadata,
    unknown_features,
)
from dcp.lake.store.table_location import TableLocation

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too


def are_plain(names: Iterable[str]) -> bool:
    """Return whether Delta ignores these properties, so that they change no rules or features."""
    return not any(name.startswith("delta.") for name in names)


def commit_properties(location: TableLocation, properties: Mapping[str, str | None]) -> bool:
    """Set properties, or remove those without a value; return whether it did.

    It did not if the table has unknown features, or if other commits came first in every attempt.
    ``location`` must be able to commit (`dcp.lake.store.file_commit.takes_files`), and the
    properties must be plain.
    """
    for _ in attempts():
        table = location.open()
        if unknown_features(table):
            return False
        before = table.metadata().configuration
        changed = {**before, **properties}
        after = {name: value for name, value in changed.items() if value is not None}
        if after == before:
            return True
        try:
            location.commit(table.version() + 1, commit_lines(_actions(table, properties, after)))
        except FileExistsError:
            continue
        checkpoint_if_due(location, table.version() + 1, after)
        return True
    return False


def _actions(
    table: "StoredTable", given: Mapping[str, str | None], configuration: Mapping[str, str]
) -> list[dict[str, object]]:
    metadata = table.metadata()
    is_removal = not any(value is not None for value in given.values())
    told = list(given) if is_removal else dict(given)
    described: dict[str, str | None] = {
        "name": metadata.name,
        "description": metadata.description,
    }
    return [
        commit_info(
            time.time_ns() // 1_000_000,
            "UNSET TBLPROPERTIES" if is_removal else "SET TBLPROPERTIES",
            {"properties": json.dumps(told)} | ({"ifExists": True} if is_removal else {}),
            isBlindAppend=True,
            operationMetrics={},
            readVersion=table.version(),
        ),
        table_metadata(
            id=str(metadata.id),
            **{name: text for name, text in described.items() if text is not None},
            schemaString=table.schema().to_json(),
            configuration=configuration,
            createdTime=metadata.created_time,
        ),
    ]
