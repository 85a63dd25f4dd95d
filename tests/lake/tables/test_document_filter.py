"""A lake's filter against a bucket's collections: what is wanted."""

import json
from typing import Any

import pytest

from dcp.errors import ConfigError
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.tables.document_filter import EVERYTHING, DocumentFilter
from dcp.lake.tables.lake_tables import DOCS, ReplicaTable

DEFAULT, C, D, E = 0, 8, 0x1A, 9
MANIFEST = {
    "_default": ("0", {"_default": "0"}),
    "s": ("8", {"c": "8", "d": "1a"}),
    "t": ("9", {"c": "9"}),
    "empty": ("a", {}),
}


def manifest_of(scopes: dict[str, tuple[str, dict[str, str]]]) -> bytes:
    told = [
        {
            "name": scope,
            "uid": uid,
            "collections": [{"name": name, "uid": each} for name, each in collections.items()],
        }
        for scope, (uid, collections) in scopes.items()
    ]
    return json.dumps({"uid": "7", "scopes": told}).encode()


def resolve(
    scopes: dict[str, tuple[str, dict[str, str]]] | None = None,
    gone: tuple[str, ...] = (),
    **rules: Any,
) -> DocumentFilter:
    manifest = manifest_of(scopes or MANIFEST)
    return DocumentFilter.resolve(FilterSettings(**rules), manifest, lambda: gone)


@pytest.mark.parametrize(
    ("include", "exclude", "wanted"),
    [
        (("s.c",), (), {C}),
        (("s.d", "_default._default"), (), {D, DEFAULT}),
        (("s",), (), {C, D}),
        (("empty",), (), set()),
        (("s", "t"), (), {C, D, E}),
        (("s", "t.c"), (), {C, D, E}),
        (("s",), ("s.d",), {C}),
        (("s.c", "s.d"), ("s",), set()),
        ((), ("s.c",), {DEFAULT, D, E}),
        ((), ("_default",), {C, D, E}),
    ],
)
def test_names(include: tuple[str, ...], exclude: tuple[str, ...], wanted: set[int]) -> None:
    found = resolve(include_collections=include, exclude_collections=exclude)
    assert {each for each, is_wanted in found.is_wanted.items() if is_wanted} == wanted
    assert found.is_wanted.keys() == {DEFAULT, C, D, E}
    assert found.has_table(DOCS), "the default collection's table is always there"
    assert found.has_table(ReplicaTable("docs__s__c__8", C, "s.c")) is (C in wanted)


def test_no_filter_is_none_at_all() -> None:
    assert resolve(exclude_keys="", system_xattrs=True) is EVERYTHING
    assert EVERYTHING.fingerprint is None
    assert resolve().fingerprint is not None, "what is of Couchbase itself is left out by default"
    assert EVERYTHING.has_table(ReplicaTable("docs__s__c__8", C))


def test_a_fingerprint_is_another_where_the_rules_are() -> None:
    found = resolve(include_collections=("s.c", "t"))
    others = [
        resolve(include_collections=("s.c",)),
        resolve(exclude_collections=("s.c", "t")),
        resolve(include_keys="a"),
        resolve(exclude_keys="a"),
        resolve(since="2026-01-01T00:00:00Z"),
        resolve(system_xattrs=True),
        resolve(),
    ]
    assert len({each.fingerprint for each in [found, *others]}) == 1 + len(others)
    assert found.fingerprint == resolve(include_collections=("t", "s.c", "t")).fingerprint
    one, other = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"
    assert resolve(since=one).fingerprint == resolve(since=other).fingerprint
    anew = MANIFEST | {"s": ("d", {"c": "e"})}
    assert found.fingerprint == resolve(anew, include_collections=("s.c", "t")).fingerprint


def test_a_name_that_nobody_has_is_refused() -> None:
    def named(name: str, gone: tuple[str, ...] = ()) -> None:
        resolve(None, gone, include_collections=(name,))

    with pytest.raises(ConfigError, match=r"include_collections: found 's\.cc'.*did you mean"):
        named("s.cc")
    gone = ("gone", "gone.c__d")
    for name in gone:
        named(name, gone)
    for name in ("gone.d", "gon", "gone.c"):
        with pytest.raises(ConfigError, match="expected scopes or collections of the bucket: "):
            named(name, gone)


def test_an_excluded_collection_may_be_gone() -> None:
    found = resolve(exclude_collections=("s.gone", "gone"))
    assert all(found.is_wanted.values())


def test_a_bucket_without_collections_has_the_default_one() -> None:
    rules = FilterSettings(include_collections=("_default._default",))
    found = DocumentFilter.resolve(rules, None)
    assert found.is_wanted == {DEFAULT: True}


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("include_collections", ("a.b.c",), "include_collections: found 'a.b.c'"),
        ("exclude_collections", ("a b",), "exclude_collections: found 'a b'"),
        ("include_keys", "(", r"include_keys: found '\(', expected a regular expression"),
        ("exclude_keys", r"(?=a)", "exclude_keys: found .*RE2"),
        ("since", "yesterday", "since: found 'yesterday', expected now, or a time"),
        ("since", "2026-01-01T00:00:00", "with its zone"),
        ("since", "1969-12-31T00:00:00Z", "from 1970 on"),
    ],
)
def test_rules_that_are_none(setting: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        FilterSettings(**{setting: value})


def test_a_time_is_exact() -> None:
    assert FilterSettings(since="1970-01-01T01:00:00.000001+01:00").since_ns == 1000
    assert FilterSettings(since="2286-11-20T17:46:39.999999Z").since_ns == 9_999_999_999_999_999_000
