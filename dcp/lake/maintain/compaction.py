"""Compacts tables (OPTIMIZE) and deletes files that no kept version needs (VACUUM).

VACUUM goes by the table property that holds the horizon; it does not run while that property is
wrong. For tables that only grow it keeps Delta's default, a week.
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from dcp.lake.config.memory import DOCUMENT_BYTES, MEBIBYTE
from dcp.lake.maintain.horizon_guard import wrong_properties
from dcp.lake.maintain.work import (
    MaintenanceWork,
    StepReport,
    maintenance_metadata,
    unless_driver_writes,
)
from dcp.lake.tables.history import history
from dcp.lake.tables.horizon import FILE_RETENTION, HOUR_SECONDS, Horizon
from dcp.lake.tables.lake_tables import LEDGERS, LakeTables
from dcp.records import plain

_LOGGER = logging.getLogger(__name__)

COMMITS: Final = 64
"""A running driver compacts a table after so many commits."""

MOST_BYTES: Final = 256 * MEBIBYTE
"""A larger table that was never sorted waits for `dcplake maintain`: OPTIMIZE rewrites it whole."""

_LOOK_BACK: Final = (COMMITS // 2, COMMITS, 4 * COMMITS)
"""Numbers of newest commits to search for an OPTIMIZE, one after the other."""


def compact_small_files(lake: LakeTables, table: str, due: int | None) -> int:
    """Compact a table of a running driver from version ``due`` on; return the next such version.

    Each round and each apply adds small files. A MERGE reads more with each file, and Delta's own
    log grows. Another driver's simultaneous commit wins. ``due`` is None at first.
    """
    newest, due = history(lake.table(table), 1)[0].version, COMMITS if due is None else due
    if newest < due:
        return due
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
    if newest < due:
        return due
    if last is not None or lake.table(table).size().bytes <= MOST_BYTES:
        # The driver's memory is for documents of any size: docs/reference/memory.md.
        step = partial(optimize_table, lake, table, DOCUMENT_BYTES)
        _LOGGER.debug("%s", unless_driver_writes("optimize", table, step))
    else:
        _LOGGER.warning(
            "table %s: found %d commits, more than %d MiB, and files never put in order; "
            "runs keep them few after one `dcplake maintain`, which rewrites it whole",
            table,
            newest,
            MOST_BYTES // MEBIBYTE,
        )
    return newest + 1 + COMMITS


_MANY_FILES: Final = 64
"""A table that only grows is compacted when it has this many files."""


def optimize(work: MaintenanceWork) -> Iterator[StepReport]:
    ledgers = (each for each in work.ledgers if work.lake.table(each).size().files >= _MANY_FILES)
    for table in (*work.tables, *ledgers):
        yield unless_driver_writes("optimize", table, partial(_optimize, work, table))


def _optimize(work: MaintenanceWork, table: str) -> StepReport:
    if not work.dry_run:
        return optimize_table(work.lake, table)
    size = work.lake.table(table).size()
    told = f"would look at {size.files:,} files, {size.bytes:,} bytes"
    return StepReport("optimize", table, told, figures=plain(size))


def optimize_table(lake: LakeTables, table: str, largest_bytes: int = 0) -> StepReport:
    """Put the rows of a table's small files into larger ones, sorted for its queries.

    Memory is kept for documents of ``largest_bytes``.
    """
    metrics = lake.table(table).optimize(maintenance_metadata(lake, "optimize"), largest_bytes)
    added, removed = metrics["numFilesAdded"], metrics["numFilesRemoved"]
    told = f"{removed:,} files became {added:,}" if removed or added else "nothing to do"
    figures = {"files_added": added, "files_removed": removed}
    return StepReport("optimize", table, told, done=bool(removed or added), figures=figures)


def vacuum(work: MaintenanceWork) -> Iterator[StepReport]:
    wrong = wrong_properties(work.lake, work.replicas, work.horizon)
    for table in work.tables:
        if FILE_RETENTION in wrong.get(table, ()):
            told = f"left alone: {FILE_RETENTION} is not the horizon; the step retention mends it"
            yield StepReport("vacuum", table, told)
        else:
            longer = work.kept if work.kept != work.horizon else None
            yield _vacuum(work, table, longer)
    for table in work.ledgers:
        yield _vacuum(work, table, None)


def _vacuum(work: MaintenanceWork, table: str, kept: Horizon | None) -> StepReport:
    hours = None if kept is None else int(-(-kept.seconds // HOUR_SECONDS))
    metadata = maintenance_metadata(work.lake, "vacuum")
    files = work.lake.table(table).vacuum(metadata, hours, dry_run=work.dry_run)
    figures = {"files": files}
    if work.dry_run:
        return StepReport("vacuum", table, f"would delete {files:,} files", figures=figures)
    needed = "within a week" if table in LEDGERS else f"within {work.kept}"
    told = f"deleted {files:,} files that no version {needed} needs"
    return StepReport("vacuum", table, told, done=bool(files), figures=figures)
