"""Notes in a file which Spark statement a thread runs: what a watcher of another process goes by.

A line names the statement that begins; a line ``-`` says that the bridge to the JVM has answered. A
process that is stopped or killed leaves the statement that it was in as the last line. A query runs
from when it is planned to when it is collected.
"""

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ENDED: Final = "-"
_TABLE: Final = re.compile(r"delta\.`[^`]*?/?([a-z_]+)`")

_thread = threading.local()


def statement_name(sql: str) -> str:
    """Return a short name of a statement: its verb, and the table it is of."""
    words = sql.split()
    verb = words[0].upper()
    if verb == "DESCRIBE":
        verb += f" {words[1].upper()}"
    table = _TABLE.search(sql)
    return f"{verb} {table[1]}" if table else verb


def log_statements(file: Path | None) -> None:
    """Note this thread's statements in a file from now on; None: no more."""
    _thread.file = (
        None if file is None else os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    )
    _thread.depth = 0


def read_statements(file: Path) -> list[str]:
    """Return the lines of such a file, whole ones only."""
    if not file.exists():
        return []
    text = file.read_text()
    return text[: text.rfind("\n") + 1].splitlines()


def install() -> None:
    """Let the sessions of this process note what they run; once."""
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.session import SparkSession

    from dcp.lake.adapters.task_files import TaskFiles

    _wrap(SparkSession, "sql", lambda _, sql, *__: statement_name(sql))
    _wrap(TaskFiles, "written", lambda files: f"append {files.location.uri.rpartition('/')[2]}")
    for name in ("collect", "toArrow"):
        _wrap(DataFrame, name, None)


def _wrap(owner: Any, method: str, name_of: Callable[..., str] | None) -> None:
    """Note the calls of a method: those with a name begin a statement, all but queries end it."""
    plain = getattr(owner, method)

    def noted(*arguments: Any, **named: Any) -> Any:
        file = getattr(_thread, "file", None)
        if file is None or _thread.depth:
            return plain(*arguments, **named)
        _thread.depth = 1
        name = "" if name_of is None else name_of(*arguments)
        if name:
            os.write(file, f"{name}\n".encode())
        try:
            return plain(*arguments, **named)
        finally:
            _thread.depth = 0
            if not name.startswith("SELECT"):
                os.write(file, f"{ENDED}\n".encode())

    setattr(owner, method, noted)
