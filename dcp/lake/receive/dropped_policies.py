"""Resolves the policy for rows of dropped collections: by id, from the names in the settings.

The event of a drop has ids only, and no manifest names a dropped collection. So the names come from
the manifests that a driver has seen, and from the lake's list of tables. A policy that the log has
recorded for a drop holds whatever the settings say.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from dcp.lake.config.settings import DroppedPolicy, PolicySettings
from dcp.lake.tables.collections import Collections, collections_in
from dcp.lake.tables.lake_tables import LakeTables
from dcp.protocol.events import SystemEventReceived
from dcp.wire.system_event import EndOfDocuments


@dataclass(frozen=True, slots=True)
class DroppedPolicies:
    default: DroppedPolicy
    by_collection: Mapping[int, DroppedPolicy] = field(default_factory=dict)
    """Collections with a policy of their own, by id."""
    met: frozenset[str] = frozenset()
    """Names in the settings that a known scope or collection has."""
    recorded: Mapping[int, DroppedPolicy] = field(default_factory=dict)
    """The policies of collections whose drop is in the log, by id."""
    recorded_up_to: int = 0
    """The newest round with events of collections when ``recorded`` was read."""
    present: frozenset[int] = frozenset()
    """Collections of ``recorded`` that the bucket has: their drop was lost."""

    @classmethod
    def of_lake(cls, rules: PolicySettings, lake: LakeTables | None) -> "DroppedPolicies":
        """Return the policies of a lake's collections. ``lake`` is None if there is none yet."""
        known = cls(rules.dropped)
        if lake is None or not rules.dropped_collections:
            return known
        return known.with_collections(rules, collections_in(lake))

    def undecided(self, dropped: Collection[int]) -> dict[int, DroppedPolicy]:
        """Return the policies, by id, of dropped collections without a recorded one."""
        return {
            each: self.by_collection.get(each, self.default)
            for each in dropped
            if each not in self.recorded
        }

    def with_collections(
        self, rules: PolicySettings, collections: Collections
    ) -> "DroppedPolicies":
        own = rules.dropped_collections.keys()
        found = {
            each.collection_id: rules.dropped_of(each.setting_names)
            for each in collections.all
            if own & set(each.setting_names)
        }
        met = own & collections.names
        by_collection = {**self.by_collection, **found}
        return replace(self, by_collection=by_collection, met=self.met | met)

    def with_present(self, rules: PolicySettings, collections: Collections) -> "DroppedPolicies":
        """Return these policies, and those of the bucket's present collections.

        Raises:
            ConfigError: a name has no scope or collection, past or present: a drop would follow
                another policy.
        """
        known = self.with_collections(rules, collections)
        for name in sorted(rules.dropped_collections.keys() - known.met):
            raise collections.unknown("policy.dropped_collections", name)
        return known


def collection_of(event: SystemEventReceived) -> int | None:
    """Return the collection whose older documents an event ends; None for other events."""
    return event.meaning.collection_id if isinstance(event.meaning, EndOfDocuments) else None
