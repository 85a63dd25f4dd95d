"""The names of a lake's own tables. A replica's name is its `ReplicaTable`'s."""

from typing import Final

CHANGES_TABLE: Final = "changes"
"""The change log (`dcp.lake.tables.schema.CHANGES`)."""

DOCS_TABLE: Final = "docs"
"""The replica of the default collection. The names of the other replicas begin with it."""

AUDIT_TABLE: Final = "undone"
"""The keys that rollbacks took back, see `dcp.lake.apply.audit`."""

CONTROL_TABLE: Final = "control"
"""Requests to the lake's driver and its answers, see `dcp.lake.change_log.control`."""

QUALITY_TABLE: Final = "quality"
"""The results of data quality checks, see `dcp.lake.tables.quality_check`."""
