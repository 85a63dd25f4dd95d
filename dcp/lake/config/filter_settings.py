"""Defines the section ``filter``: which documents of the bucket a lake has.

After a change of the filter every vbucket is read anew: `dcp.lake.tables.document_filter`.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dcp.errors import ConfigError
from dcp.setting_keys import Section, key

NAME: Final = "[A-Za-z0-9_%-]{1,251}"
"""The pattern of a scope's or a collection's name."""

_SCOPE_OR_COLLECTION: Final = re.compile(rf"{NAME}(\.{NAME})?")
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FilterSettings(Section):
    """The documents to replicate: every key lets them pass (docs/howto/filter-documents.md)."""

    include_collections: tuple[str, ...] = key(
        (), "Scopes (as inventory) and collections (as inventory.hotel); all when empty."
    )
    exclude_collections: tuple[str, ...] = key(
        (), "Scopes and collections to leave out of those that are included."
    )
    include_keys: str = key(
        "", "Regular expression (RE2) that is found somewhere in the key; all when empty."
    )
    exclude_keys: str = key(
        "^_txn:",
        "Regular expression (RE2) that is found nowhere in the key. The default leaves out what "
        "Couchbase's transactions keep for themselves; empty: it leaves out none.",
        may_be_empty=True,
    )
    since: str = key(
        "",
        "Time, as 2026-01-31T00:00:00Z: documents that were last changed before it, by their CAS, "
        "are left out, and leave the table if they were in it. Or now: a new lake has what changes "
        "from its first run on, and reads nothing of before (docs/howto/filter-documents.md).",
    )
    system_xattrs: bool = key(
        False,
        "Whether the column `xattrs` has system xattrs too, whose names begin with _ (as _sync), "
        "and `txn`, where Couchbase's transactions stage what is not committed.",
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for setting in ("include_collections", "exclude_collections"):
            require_names(setting, getattr(self, setting))
        for setting in ("include_keys", "exclude_keys"):
            check_expression(setting, getattr(self, setting))
        _ = self.since_ns

    def wants(self, names: Collection[str]) -> bool:
        """Return whether a collection with these names, its scope's and its own, is wanted."""
        include, exclude = self.include_collections, self.exclude_collections
        is_included = not include or any(name in include for name in names)
        return is_included and not any(name in exclude for name in names)

    @property
    def starts_now(self) -> bool:
        """True if vbuckets start at their high seqnos, not at 0."""
        return self.since == "now"

    @property
    def since_ns(self) -> int:
        """The time in nanoseconds since 1970, as CAS values count; 0 without one.

        Raises:
            ConfigError: it is no time, has no zone, or is before 1970.
        """
        if not self.since or self.starts_now:
            return 0
        try:
            time = datetime.fromisoformat(self.since)
        except ValueError:
            time = None
        if time is None or time.tzinfo is None or time.timestamp() < 0:
            raise ConfigError(
                f"since: found {self.since!r}, expected now, or a time from 1970 on, with its "
                "zone, as 2026-01-31T00:00:00Z"
            )
        passed = time - datetime(1970, 1, 1, tzinfo=UTC)
        return (passed.days * 86400 + passed.seconds) * _NS + passed.microseconds * 1000


def require_names(setting: str, names: Iterable[str]) -> None:
    """Raise ConfigError for a name that no scope or collection can have."""
    for name in names:
        if not _SCOPE_OR_COLLECTION.fullmatch(name):
            raise ConfigError(
                f"{setting}: found {name!r}, expected scope or scope.collection, of "
                "letters, digits, _ - %"
            )


def check_expression(setting: str, expression: str) -> None:
    """Raise ConfigError for a text that is no regular expression of RE2."""
    if not expression:
        return
    import pyarrow as pa  # not at the top: commands that read no documents start without it
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([""]), expression)
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"{setting}: found {expression!r}, expected a regular expression as RE2 has them "
            f"({error})"
        ) from None
