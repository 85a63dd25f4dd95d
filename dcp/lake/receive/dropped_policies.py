"""Resolves what becomes of the rows of dropped collections: by id, from names of the settings.

The event of a drop has ids only, and what was dropped is in no manifest any more. So names come
from the manifests that a driver sees, and of earlier times from the events that the log keeps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dcp.errors import ConfigError
from dcp.lake.config.settings import PolicySettings
from dcp.lake.tables.collections import Collections
from dcp.suggestions import did_you_mean


class DroppedPolicy(StrEnum):
    """The configured treatment of rows of a collection that was dropped at the source."""

    DELETE = "delete"
    """They leave the replica, in the commit of the snapshot that carries the drop."""
    KEEP = "keep"
    """They stay as they were; the drop ends no documents."""
    SOFT = "soft"
    """They stay; the event says that they are marked, and since when."""


@dataclass(frozen=True, slots=True)
class DroppedPolicies:
    default: DroppedPolicy = DroppedPolicy.DELETE
    by_collection: Mapping[int, DroppedPolicy] = field(default_factory=dict)
    """Collections with a policy of their own, by id."""
    met: frozenset[str] = frozenset()
    """Names of the settings for which a scope or collection was found."""

    def of(self, collection_id: int) -> DroppedPolicy:
        return self.by_collection.get(collection_id, self.default)

    def knowing(self, rules: PolicySettings, collections: Collections) -> "DroppedPolicies":
        own = rules.dropped_collections.keys()
        found = {
            each.collection_id: DroppedPolicy(rules.dropped_of(each.names))
            for each in collections.all
            if own & set(each.names)
        }
        met = own & collections.names
        return DroppedPolicies(self.default, {**self.by_collection, **found}, self.met | met)

    def refuse_unknown(self, rules: PolicySettings, collections: Collections) -> None:
        """Refuse a name that no scope or collection has or had: a drop would follow another policy.

        Raises:
            ConfigError: there is such a name. ``collections`` are the present ones.
        """
        names = collections.names
        for name in sorted(rules.dropped_collections.keys() - self.met):
            raise ConfigError(
                f"policy.dropped_collections: found {name!r}{did_you_mean(name, names)}, expected "
                f"scopes or collections of the bucket: {', '.join(sorted(names))}"
            )
