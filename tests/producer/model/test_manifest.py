"""Manifests: what they say as JSON, how they change, and which events lead from one to another."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.manifest_changes import (
    MAX_COLLECTIONS,
    CreateCollection,
    CreateScope,
    DropCollection,
    DropScope,
    FlushCollection,
    ManifestChange,
    changed,
)
from dcp.server.model.manifest import Manifest
from dcp.server.model.refused_error import RefusedError
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
)
from dcp.wire.vocabulary import Status
from tests.producer import recorded_manifests as recorded

NAMES = ("a", "b", "c")
scopes = st.sampled_from(["_default", *NAMES])
names = st.sampled_from(["_default", *NAMES])
changes = st.one_of(
    st.builds(CreateScope, st.sampled_from(NAMES)),
    st.builds(DropScope, st.sampled_from(NAMES)),
    st.builds(CreateCollection, scopes, st.sampled_from(NAMES), st.sampled_from([None, 0, 60])),
    st.builds(DropCollection, scopes, names),
    st.builds(FlushCollection, scopes, names),
)


def _after(manifest: Manifest, *together: ManifestChange) -> Manifest:
    return changed(manifest, together)


def test_json_is_what_servers_answer() -> None:
    assert Manifest().as_json() == (
        b'{"scopes":[{"collections":[{"name":"_default","uid":"0"}],'
        b'"name":"_default","uid":"0"}],"uid":"0"}'
    )
    assert recorded.after(recorded.DISK).as_json() == (
        b'{"scopes":[{"collections":[{"name":"c9","uid":"9"},{"name":"big","uid":"1f4"}],'
        b'"name":"s8","uid":"8"},{"collections":[{"name":"_default","uid":"0"},'
        b'{"name":"c8","uid":"8"}],"name":"_default","uid":"0"}],"uid":"3"}'
    )
    assert b'{"maxTTL":30,"name":"ttl","uid":"a"}' in recorded.after(recorded.DISK[:2]).as_json()


def test_the_events_of_a_recorded_server() -> None:
    """Its order, and its uids: those before the last of a change are of the change before."""
    manifest, told = Manifest(), []
    for together in recorded.LIVE:
        following = changed(manifest, together)
        told += [event for event, _ in manifest.steps(following)]
        manifest = following
    assert told == [
        ScopeCreated(0, 8, b"s8"),
        CollectionBegun(0, 8, 9, b"c9"),
        CollectionBegun(1, 0, 8, b"c8"),
        CollectionBegun(2, 8, 0xA, b"ca"),
        CollectionEnded(3, 0, 8),
        CollectionEnded(3, 8, 0xA),
        CollectionEnded(3, 8, 9),
        ScopeDropped(4, 8),
        CollectionEnded(4, 0, 0),
        CollectionBegun(5, 0, 0xB, b"cb"),
    ]


def test_ids_are_given_in_order_and_never_twice() -> None:
    manifest = _after(Manifest(), CreateScope("s"), CreateCollection("s", "a"))
    assert (manifest.scope("s").id, manifest.at("s.a").id) == (8, 8)
    manifest = _after(manifest, DropScope("s"))
    manifest = _after(manifest, CreateScope("s"), CreateCollection("s", "a"))
    assert (manifest.scope("s").id, manifest.at("s.a").id, manifest.uid) == (9, 9, 3)
    with pytest.raises(
        RefusedError, match="collection id: found 0x8, expected an id that was never used"
    ):
        _after(manifest, CreateCollection("s", "b", id=8))
    with pytest.raises(RefusedError, match="scope id: found 7, expected 8 to"):
        _after(manifest, CreateScope("t", id=7))


def test_a_flush_is_a_new_beginning() -> None:
    manifest = _after(Manifest(), CreateCollection("", "a", 60))
    flushed = _after(manifest, FlushCollection("", "a"))
    events = [event for event, _ in manifest.steps(flushed)]
    assert events == [CollectionBegun(2, 0, 8, b"a", 60)]
    assert flushed.steps(flushed) == []
    assert flushed.as_json() == manifest.as_json().replace(b'"uid":"1"', b'"uid":"2"')


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (CreateScope("s"), Status.EINVAL, "scope s: found one of that name, expected none"),
        (CreateScope("_x"), Status.EINVAL, "scope name: found '_x', expected 1 to 251"),
        (CreateScope("%x"), Status.EINVAL, "scope name: found '%x'"),
        (CreateScope(""), Status.EINVAL, "scope name: found ''"),
        (CreateScope("a" * 252), Status.EINVAL, "scope name: found 'aaa"),
        (CreateScope("a.b"), Status.EINVAL, "scope name: found 'a.b'"),
        (DropScope("_default"), Status.EINVAL, "found _default, which cannot be dropped"),
        (DropScope("t"), Status.UNKNOWN_SCOPE, "scope: found 't', expected one of _default, s"),
        (CreateCollection("t", "a"), Status.UNKNOWN_SCOPE, "scope: found 't'"),
        (CreateCollection("s", "a"), Status.EINVAL, "collection a: found one of that name"),
        (CreateCollection("s", "é"), Status.EINVAL, "collection name: found 'é'"),
        (CreateCollection("s", "b", -1), Status.EINVAL, "max_ttl: found -1, expected 0 to"),
        (CreateCollection("s", "b", 2**31), Status.EINVAL, "max_ttl: found 2147483648"),
        (DropCollection("s", "b"), Status.UNKNOWN_COLLECTION, "found 'b' in scope s, expected one"),
        (FlushCollection("", "b"), Status.UNKNOWN_COLLECTION, "found 'b' in scope _default"),
    ],
)
def test_changes_that_cannot_be_made(change: ManifestChange, status: Status, message: str) -> None:
    manifest = _after(Manifest(), CreateScope("s"), CreateCollection("s", "a"))
    with pytest.raises(RefusedError, match=message) as refused:
        _after(manifest, CreateScope("unseen"), change)
    assert refused.value.status is status


def test_there_is_a_most() -> None:
    full = _after(Manifest(), *(CreateCollection("", f"c{n}") for n in range(MAX_COLLECTIONS - 1)))
    with pytest.raises(RefusedError, match=f"at most {MAX_COLLECTIONS}"):
        _after(full, CreateScope("s"), CreateCollection("s", "one-more"))


@pytest.mark.parametrize(
    ("path", "found"),
    [("_default._default", 0), (".", 0), ("_default.", 0), ("._default", 0), ("s.a", 8)],
)
def test_paths(path: str, found: int) -> None:
    manifest = _after(Manifest(), CreateScope("s"), CreateCollection("s", "a"))
    assert manifest.at(path).id == found
    for malformed in ("", "s", "s.a.b"):
        with pytest.raises(RefusedError, match=r"expected scope\.collection"):
            manifest.at(malformed)


@given(st.lists(st.lists(changes, min_size=1, max_size=4), max_size=12))
def test_steps_lead_from_any_manifest_to_any_later_one(
    history: list[list[ManifestChange]],
) -> None:
    seen = [Manifest()]
    for together in history:
        try:
            seen.append(changed(seen[-1], together))
        except RefusedError:
            continue
    last = seen[-1]
    for first in seen:
        steps = first.steps(last)
        learned = first
        held_scopes, held = set(first.scopes), set(first.collections)
        for number, (event, then) in enumerate(steps, 1):
            _apply(event, held_scopes, held)
            assert (set(then.scopes), set(then.collections)) == (held_scopes, held)
            assert {each.scope_id for each in then.collections.values()} <= held_scopes
            assert event.manifest_uid == (last.uid if number == len(steps) else first.uid)
            learned = learned.after(event)
            assert learned.given_collection_ids >= learned.collections.keys() - {0}
        if steps:
            assert _told(learned) == _told(last)
        assert (held_scopes, held) == (set(last.scopes), set(last.collections))
        if not steps:
            assert replace(first, uid=last.uid).as_json() == last.as_json()
    for earlier, later in pairwise(seen):
        new = later.collections.keys() - earlier.collections.keys()
        assert not new & earlier.given_collection_ids
        assert later.uid == earlier.uid + 1


def _told(manifest: Manifest) -> tuple[object, ...]:
    """What events tell of a manifest; which manifest flushed a collection they do not."""
    collections = {id_: replace(each, flush_uid=0) for id_, each in manifest.collections.items()}
    return manifest.uid, dict(manifest.scopes), collections


def _apply(event: ManifestEvent, scopes: set[int], collections: set[int]) -> None:
    """The naive reading: what a consumer makes of an event."""
    match event:
        case ScopeCreated():
            assert event.scope_id not in scopes
            scopes.add(event.scope_id)
        case ScopeDropped():
            scopes.remove(event.scope_id)
        case CollectionBegun():
            collections.add(event.collection_id)
        case CollectionEnded():
            collections.remove(event.collection_id)
