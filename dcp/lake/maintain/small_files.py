"""Compacts a lake's tables while a driver runs, since each round and each apply adds small files.

What a MERGE reads grows with them, and so does Delta's own log. After every `COMMITS` commits of a
table OPTIMIZE makes a large file of its small ones; what is large already stays as it is.
"""

import logging
from functools import partial
from typing import Final

from dcp.lake.config.memory import DOCUMENT_BYTES, MEBIBYTE
from dcp.lake.maintain.compaction import optimize_table
from dcp.lake.maintain.maintenance_work import unless_driver_writes
from dcp.lake.tables.history import history
from dcp.lake.tables.tables import LakeTables

_LOG = logging.getLogger(__name__)

COMMITS: Final = 64

MOST_BYTES: Final = 256 * MEBIBYTE
"""Larger tables whose files were never sorted are left to `dcplake maintain`: the first OPTIMIZE of
a table rewrites it whole.
"""

_LOOK_BACK: Final = (COMMITS // 2, COMMITS, 4 * COMMITS)
"""So many of the newest commits are searched for an OPTIMIZE: others may come between."""


class SmallFiles:
    def __init__(self) -> None:
        self._due: dict[str, int] = {}  # by table, the version from which on it may be time

    def compact(self, lake: LakeTables, table: str) -> None:
        """Compact a table if it is due; another driver's simultaneous commit wins."""
        newest = history(lake.table(table), 1)[0].version
        if newest < self._due.get(table, COMMITS):
            return
        last = next(
            (
                commit
                for limit in _LOOK_BACK
                for commit in history(lake.table(table), limit)
                if commit.is_optimize
            ),
            None,
        )
        due = COMMITS if last is None else last.version + COMMITS
        if newest >= due:
            due = newest + 1 + COMMITS
            if last is not None or lake.table(table).size().bytes <= MOST_BYTES:
                # The driver's memory is for documents of any size: docs/memory.md.
                step = partial(optimize_table, lake, table, DOCUMENT_BYTES)
                _LOG.debug("%s", unless_driver_writes("optimize", table, step))
            else:
                _LOG.warning(
                    "table %s: found %d commits, more than %d MiB, and files never put in order; "
                    "runs keep them few after one `dcplake maintain`, which rewrites it whole",
                    table,
                    newest,
                    MOST_BYTES // MEBIBYTE,
                )
        self._due[table] = due
