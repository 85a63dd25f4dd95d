"""Remembers what was read of a table's log, so that only what is new is read again."""

import json
from collections.abc import Hashable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

from dcp.lake.store.place import TablePlace, in_time

_MOST_REMEMBERED: Final = 500
"""Commits of a table that are remembered at most."""

_Told = tuple[dict[str, Any], int]
"""What a commit says of itself, and the time of its file in milliseconds."""


@dataclass(slots=True)
class RememberedTable:
    """A table as it was read, up to its newest commit, and what identifies that commit's file.

    ``options`` opened it: with others it is read anew, since keys end. ``told`` are commits by
    version; those below ``first_kept`` are gone.
    """

    stored: StoredTable
    newest: Hashable
    options: Mapping[str, str] | None
    told: dict[int, _Told] = field(default_factory=dict)
    first_kept: int = 0

    def catch_up(self, place: TablePlace) -> bool:
        """Read the commits that have come since; False where all must be read anew.

        That is so where the table was made anew, or its log lost what was read.
        """
        version = self.stored.version()
        found = place.commits_from(version)
        if found.get(version) != self.newest or place.options != self.options:
            return False
        if len(found) == 1:
            return True
        self.stored.update_incremental()
        newest = self.stored.version()
        if newest not in found:
            found = place.commits_from(newest)
        self.newest = found.get(newest)
        return newest in found

    def commits(self, place: TablePlace, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, newest first, as delta-rs would.

        That would keep this process's other threads from running while it waits for a store.
        """
        newest = self.stored.version()
        wanted = range(newest, max(newest - limit, self.first_kept - 1), -1)
        told = {each: self.told[each] for each in wanted if each in self.told}
        missing = [each for each in wanted if each not in told]
        for file in place.read_commits(missing):
            told[file.version] = _commit_info(file.content, file.version), file.milliseconds
        if told.keys() < set(wanted):
            self.first_kept = min(told, default=newest + 1)
        kept = sorted({**self.told, **told}, reverse=True)[:_MOST_REMEMBERED]
        self.told = {each: told.get(each) or self.told[each] for each in kept}
        return in_time(
            (commit, commit.get("timestamp"), of_file) for commit, of_file in told.values()
        )


def as_it_is(
    place: TablePlace, remembered: MutableMapping[str, RememberedTable], name: str
) -> RememberedTable:
    """Return a table as it is: as it is ``remembered`` by its name, and what has come since."""
    known = remembered.pop(name, None)
    is_known = False
    if known is not None:
        with suppress(Exception):  # of many classes; reading it all anew says what is wrong
            is_known = known.catch_up(place)
    if known is None or not is_known:
        stored = place.open()
        version = stored.version()
        known = RememberedTable(stored, place.commits_from(version).get(version), place.options)
        if known.newest is None:  # the log was cleaned, or the table removed in the meantime
            return known
    remembered[name] = known
    return known


def _commit_info(commit_file: bytes, version: int) -> dict[str, Any]:
    for line in BytesIO(commit_file):
        if b'"commitInfo"' in line and (found := json.loads(line).get("commitInfo")):
            return {**found, "version": version}
    return {"version": version}
