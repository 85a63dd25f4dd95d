"""Reads the rows that rollbacks undid, for ``dcplake rollbacks``."""

from typing import Final

from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.undone_key import UndoneKey
from dcp.records import read

NEWEST: Final = 100


def undone_keys(lake: LakeTables, count: int = NEWEST) -> tuple[list[UndoneKey], int]:
    """Return the keys that rollbacks took back, newest applies first, and their total number."""
    if not lake.table(AUDIT_TABLE).exists():
        return [], 0
    audit = lake.table(AUDIT_TABLE)
    [[total]] = (row.values() for row in audit.rows("count(*) AS total", "true"))
    newest = f"true ORDER BY time DESC, version DESC, vbucket, key LIMIT {int(count)}"
    return [read(UndoneKey, row) for row in audit.rows("*", newest)], total
