"""Gives the commits of a table their times."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any


def in_time(told: Iterable[tuple[dict[str, Any], int | None, int]]) -> list[dict[str, Any]]:
    """Return the commits with their times, newest first.

    Each item is a commit, its own time, and its file's time. Both times are milliseconds. The
    time that is returned is the commit's own: its file's where it names none or one that is still
    to come, for a clock may have been wrong; and never before the commit before it.
    """
    least, now = -1, datetime.now(UTC).timestamp() * 1000
    commits = []
    for commit, own, of_file in sorted(told, key=lambda each: int(each[0]["version"])):
        least = max(of_file if own is None or own > now else own, least + 1)
        commits.append({**commit, "time": _utc(least), "file_time": _utc(of_file)})
    return commits[::-1]


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
