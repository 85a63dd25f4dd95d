"""The policies of dropped collections: which holds for which id, and names that nobody knows."""

import json
from dataclasses import replace

import pytest

from dcp.errors import ConfigError
from dcp.lake.config.settings import DroppedPolicy, PolicySettings
from dcp.lake.receive.dropped_policies import DroppedPolicies
from dcp.lake.tables.collections import collections_of

RULES = PolicySettings(
    dropped=DroppedPolicy.DELETE,
    dropped_collections={"s": "keep", "s.gone": "delete", "_default": "keep"},
)


def manifest(**collections: list[str]) -> bytes:
    """A manifest with these scopes; ids are 8, 9 and so on by the names of collections."""
    ids = {"c": "8", "gone": "9", "d": "a"}
    scopes = [
        {
            "name": scope,
            "uid": f"{number:x}",
            "collections": [{"name": name, "uid": ids[name]} for name in names],
        }
        for number, (scope, names) in enumerate(collections.items(), 8)
    ]
    return json.dumps({"uid": "1", "scopes": scopes}).encode()


def test_the_nearest_name_decides_and_what_was_learnt_stays() -> None:
    policies = DroppedPolicies(RULES.dropped)
    for seen in (None, manifest(s=["c", "gone"], t=["d"]), manifest(s=[], t=[])):
        policies = policies.with_collections(RULES, collections_of(seen))
    found = policies.undecided([0, 8, 9, 10, 99])
    assert list(found.values()) == ["keep", "keep", "delete", "delete", "delete"]
    recorded = replace(policies, recorded={8: DroppedPolicy.DELETE, 10: DroppedPolicy.KEEP})
    assert recorded.undecided([8, 9, 10]) == {9: "delete"}
    policies.with_present(RULES, collections_of(manifest()))  # they were there once


def test_a_name_that_nobody_knows_is_refused() -> None:
    there = collections_of(manifest(_default=[], s=["c"]))
    policies = DroppedPolicies(DroppedPolicy.DELETE)
    with pytest.raises(
        ConfigError, match=r"dropped_collections: found 's\.gone'.*_default, s, s\.c"
    ):
        policies.with_present(RULES, there)
