"""Keeps the commits of a table that this process has read, to read only new ones later."""

import json
import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from threading import Lock
from typing import Any, Final

from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

from dcp.lake.store.cached_reads import CachedReads
from dcp.lake.store.table_location import TableLocation, with_times

_LOGGER = logging.getLogger(__name__)

_MOST_REMEMBERED: Final = 500

_Told = tuple[dict[str, Any], int]


@dataclass(slots=True)
class RememberedTable:
    stored: StoredTable
    newest: Hashable
    """Identifies the file of the newest commit."""
    options: Mapping[str, str] | None = field(repr=False)  # they contain secrets
    """The options that opened the table. If they change, it is opened again: keys expire."""
    read_at: int
    """A time of `CachedReads.tick`."""
    told: dict[int, _Told] = field(default_factory=dict)
    """Commits by version, each with its file's time in milliseconds."""
    first_kept: int = 0
    """The Delta log has no commits of lower versions."""

    def catch_up(self, location: TableLocation) -> bool:
        """Read the new commits; return False if the table must be opened again.

        That happens if the table was created again, or its Delta log lost commits that this process
        had read.
        """
        version = self.stored.version()
        found = location.commits_from(version)
        if found.get(version) != self.newest or location.options != self.options:
            return False
        if len(found) == 1:
            return True
        self.stored.update_incremental()
        newest = self.stored.version()
        # Another commit came between the listing and the update.
        if newest not in found:
            found = location.commits_from(newest)
        self.newest = found.get(newest)
        return newest in found

    def commits(self, location: TableLocation, limit: int) -> list[dict[str, Any]]:
        # delta-rs would block the other threads of this process while it waits for a store.
        newest, before = self.stored.version(), self.told
        wanted = range(newest, max(newest - limit, self.first_kept - 1), -1)
        told = {each: before[each] for each in wanted if each in before}
        missing = [each for each in wanted if each not in told]
        for file in location.read_commits(missing):
            told[file.version] = _commit_info(file.content, file.version), file.milliseconds
        if told.keys() < set(wanted):
            self.first_kept = min(told, default=newest + 1)
        known = {**before, **told}
        self.told = {each: known[each] for each in sorted(known, reverse=True)[:_MOST_REMEMBERED]}
        return with_times(
            (commit, commit.get("timestamp"), of_file) for commit, of_file in told.values()
        )


class RememberedTables:
    """The tables of an open lake that this process has read, by their SQL names.

    Threads share them. If one thread reads a table again, the others continue with the newer
    state. Only one thread at a time reads a table.
    """

    def __init__(self) -> None:
        self.cached_reads = CachedReads()
        self._tables: dict[str, RememberedTable] = {}
        self._absent: dict[str, int] = {}
        self._reading: dict[str, Lock] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def is_absent(self, name: str) -> bool:
        return self.cached_reads.has_seen(self._absent.get(name, 0))

    def note_absent(self, name: str, read_at: int) -> None:
        self._absent[name] = read_at

    def as_it_is(self, location: TableLocation, name: str) -> RememberedTable:
        with self._reading.setdefault(name, Lock()):
            known = self._tables.get(name)
            if known is not None and self.cached_reads.has_seen(known.read_at):
                return known
            return self._read(location, name)

    def _read(self, location: TableLocation, name: str) -> RememberedTable:
        known, read_at, is_known = self._tables.pop(name, None), self.cached_reads.tick(), False
        if known is not None:
            try:
                is_known = known.catch_up(location)
            except Exception as failure:  # of many classes; opening it again names the fault
                _LOGGER.debug("%s: read anew: %s: %s", location, type(failure).__name__, failure)
        if known is not None and is_known:
            known.read_at = read_at
        else:
            # The options come first: if keys change before `open`, the next read opens again.
            options, stored = location.options, location.open()
            newest = location.commits_from(stored.version()).get(stored.version())
            known = RememberedTable(stored, newest, options, read_at)
            if newest is None:  # somebody has cleaned the Delta log or removed the table
                return known
        self._tables[name] = known
        return known


def _commit_info(commit_file: bytes, version: int) -> dict[str, Any]:
    for line in BytesIO(commit_file):
        if b'"commitInfo"' in line and (found := json.loads(line).get("commitInfo")):
            return {**found, "version": version}
    return {"version": version}
