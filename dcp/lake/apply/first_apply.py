"""The first apply of a replica: its rows go into an empty table, so nothing has to be merged.

Spark reads the change log and chooses the rows, as for any apply; its tasks write the table's data
files themselves. The commit has the fence and the metadata of the MERGE that it stands for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dcp.lake.apply.apply_plan import ApplyPlan
from dcp.lake.config.memory import MEBIBYTE, arrow_settings
from dcp.lake.tables.data_file import FileContents
from dcp.lake.tables.file_commit import Operation, commit_files
from dcp.lake.tables.history import metadata_json
from dcp.lake.tables.schema import REPLICA, REPLICA_STATISTICS
from dcp.lake.tables.sql import quoted
from dcp.lake.tables.tables import LakeTables
from dcp.lake.tables.task_files import TaskFiles
from dcp.lake.tables.transaction import session_settings_for_a_while

_FILES: Final = FileContents(REPLICA, REPLICA_STATISTICS, 16 * MEBIBYTE)
"""Such a task holds no window of a connection: there is room for row groups that read well."""


def insert_rows(
    lake: LakeTables,
    plan: ApplyPlan,
    source: str,
    folder: Path,
    transaction: tuple[str, int],
    metadata: Mapping[str, Any],
) -> None:
    """Write the rows of ``source`` that are not deleted, and commit them.

    Args:
        lake: where to.
        plan: of the table's first apply; ``base_version`` is the newest version there.
        source: what a MERGE would merge, as SQL names it.
        folder: the table's, which `dcp.lake.tables.file_commit.takes_files`.
        transaction: the fence.
        metadata: of the commit.

    Raises:
        VersionTakenError: another commit came first.

    """
    columns = ", ".join(quoted(name) for name in REPLICA.names)
    with session_settings_for_a_while(lake.spark, arrow_settings(plan.largest_bytes)):
        rows = lake.spark.sql(f"SELECT {columns} FROM {source} WHERE NOT deleted")
        files = TaskFiles(rows, lambda batches: batches, folder, _FILES)
        written = files.written()
    commit_files(
        folder,
        written,
        plan.base_version,
        transaction,
        metadata_json(metadata),
        Operation.MERGE,
    )
