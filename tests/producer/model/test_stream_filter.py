"""Stream filters: which JSON values there are, what passes them, and how events change them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.manifest_changes import DropCollection, changed
from dcp.server.model.manifest import Manifest
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.stream_filter import EVERYTHING, LEGACY, FilterKind, StreamFilter
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.streams.stream_request_value import parse_filter
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
)
from dcp.wire.vocabulary import EndReason, Opcode, Status
from tests.producer import recorded_manifests as recorded

MANIFEST = recorded.after(recorded.DISK)
NO_DEFAULT = changed(MANIFEST, [DropCollection("", "")])
SCOPE = StreamFilter(FilterKind.SCOPE, frozenset({9, 0x1F4}), 8)


def _some(*ids: int) -> StreamFilter:
    return StreamFilter(FilterKind.COLLECTIONS, frozenset(ids))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # as recorded: 05-collections-disk, 05b-collections-live, 11-oso
        (b"", EVERYTHING),
        (b"{}", Status.EINVAL),
        (b'{"uid":"2"}', EVERYTHING),
        (b'{"uid":"99"}', EVERYTHING),
        (b'{"uid":5}', EVERYTHING),
        (b'{"uid":["x"]}', EVERYTHING),
        (b'{"collections":["8"]}', _some(8)),
        (b'{"collections":["8","9"]}', _some(8, 9)),
        (b'{"collections":["1f4"]}', _some(0x1F4)),
        (b'{"collections":["0"]}', _some(0)),
        (b'{"collections":[]}', _some()),
        (b'{"collections":["a"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":["77"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":', Status.EINVAL),
        (b'{"collections":[8]}', Status.EINVAL),
        (b'{"scope":"8"}', SCOPE),
        (b'{"scope":"0"}', StreamFilter(FilterKind.SCOPE, frozenset({0, 8}), 0)),
        (b'{"scope":"77"}', Status.UNKNOWN_SCOPE),
        # the rest of the syntax
        (b'{"collections":["1F4","1f4"]}', _some(0x1F4)),
        (b'{"collections":["8"],"more":[1,{}]}', _some(8)),
        (b'{"more":1}', Status.EINVAL),
        (b'{"uid":"2","more":"%s"}' % (b"x" * 60_000), EVERYTHING),
        (b'{"uid":"2","more":"%s"}' % (b"x" * 65_536), Status.EINVAL),
        (b'{"collections":"8"}', Status.EINVAL),
        (b'{"collections":["0x8"]}', Status.EINVAL),
        (b'{"collections":["+8"]}', Status.EINVAL),
        (b'{"collections":[" 8"]}', Status.EINVAL),
        (b'{"collections":[""]}', Status.EINVAL),
        (b'{"collections":["g"]}', Status.EINVAL),
        (b'{"collections":["100000008"]}', Status.EINVAL),
        (b'{"collections":["8","77"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":["8"],"scope":"8"}', Status.EINVAL),
        (b'{"collections":null}', Status.EINVAL),
        (b'{"scope":8}', Status.EINVAL),
        (b'{"scope":["8"]}', Status.EINVAL),
        (b'{"scope":""}', Status.EINVAL),
        (b'{"purge_seqno":"12"}', replace(EVERYTHING, purge_seqno=12)),
        (b'{"purge_seqno":"18446744073709551615"}', replace(EVERYTHING, purge_seqno=2**64 - 1)),
        (b'{"purge_seqno":"18446744073709551616"}', Status.EINVAL),
        (b'{"purge_seqno":12}', Status.EINVAL),
        (b'{"purge_seqno":"a"}', Status.EINVAL),
        ('{"purge_seqno":"٣"}'.encode(), Status.EINVAL),
        (b'{"purge_seqno":"5","collections":["8"]}', replace(_some(8), purge_seqno=5)),
        (b'{"cts":{"free_memory":1}}', EVERYTHING),
        (b'{"cts":1}', Status.EINVAL),
        (b'{"sid":1}', Status.DCP_STREAM_ID_INVALID),
        (b"[]", Status.EINVAL),
        (b'"collections"', Status.EINVAL),
        (b"8", Status.EINVAL),
        (b"\xff", Status.EINVAL),
        (b"[" * 100_000, Status.EINVAL),
    ],
)
def test_values(value: bytes, expected: StreamFilter | Status) -> None:
    assert _parsed(value, MANIFEST, collections=True) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"sid":1,"collections":["8"]}', replace(_some(8), stream_id=1)),  # 05c-stream-ids
        (b'{"sid":0}', Status.DCP_STREAM_ID_INVALID),
        (b"{}", Status.EINVAL),
        (b'{"sid":65535}', replace(EVERYTHING, stream_id=65535)),
        (b'{"sid":65536}', Status.DCP_STREAM_ID_INVALID),
        (b'{"sid":-1}', Status.EINVAL),
        (b'{"sid":"1"}', Status.EINVAL),
        (b'{"sid":1.5}', Status.EINVAL),
        (b'{"sid":true}', Status.EINVAL),
        (b'{"sid":1,"collections":["77"]}', Status.UNKNOWN_COLLECTION),
        (b'{"collections":["8"]}', Status.DCP_STREAM_ID_INVALID),
        (b"", Status.DCP_STREAM_ID_INVALID),
    ],
)
def test_values_with_stream_ids(value: bytes, expected: StreamFilter | Status) -> None:
    assert _parsed(value, MANIFEST, collections=True, stream_ids=True) == expected


@pytest.mark.parametrize(
    ("value", "manifest", "expected"),
    [
        (b"", MANIFEST, LEGACY),
        (b"", NO_DEFAULT, Status.UNKNOWN_COLLECTION),
        (b'{"collections":["8"]}', MANIFEST, Status.EINVAL),
        (b'{"purge_seqno":"1"}', MANIFEST, Status.EINVAL),
    ],
)
def test_values_of_clients_without_collections(
    value: bytes, manifest: Manifest, expected: StreamFilter | Status
) -> None:
    assert _parsed(value, manifest, collections=False) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", replace(EVERYTHING, sync_writes=True)),
        (b'{"uid":"1"}', replace(EVERYTHING, sync_writes=True)),
        (b'{"collections":["8"]}', Status.NOT_SUPPORTED),
        (b'{"scope":"8"}', Status.NOT_SUPPORTED),
        (b'{"scope":"77"}', Status.UNKNOWN_SCOPE),
    ],
)
def test_values_on_connections_of_sync_writes(
    value: bytes, expected: StreamFilter | Status
) -> None:
    assert _parsed(value, MANIFEST, collections=True, sync_writes=True) == expected


@given(st.binary(max_size=40), st.booleans(), st.booleans())
def test_any_value_has_an_answer(value: bytes, collections: bool, stream_ids: bool) -> None:
    for text in (value, json.dumps({"collections": [value.hex()], "sid": len(value)}).encode()):
        found = _parsed(text, MANIFEST, collections=collections, stream_ids=stream_ids)
        if isinstance(found, StreamFilter):
            assert found.collections <= MANIFEST.collections.keys()
            assert (found.stream_id is None) is not stream_ids


def _parsed(value: bytes, manifest: Manifest, **negotiated: bool) -> StreamFilter | Status:
    try:
        return parse_filter(value, manifest, **negotiated)
    except RefusedError as refused:
        return refused.status


def _document(collection: int) -> Version:
    return Version(0, b"k", Content(b"1"), seqno=7, rev=1, cas=9, collection=collection)


def _prepare(collection: int) -> Version:
    content = Content(b"1", opcode=int(Opcode.DCP_PREPARE), sync=SyncWrite(level=1))
    return Version(0, b"k", content, seqno=7, rev=1, cas=9, collection=collection)


def _event(event: ManifestEvent) -> Version:
    return Version.of_event(0, event, seqno=7)


ITEMS = {
    "document 0": _document(0),
    "document 8": _document(8),
    "document 9": _document(9),
    "prepare 0": _prepare(0),
    "prepare 8": _prepare(8),
    "8 begins in 0": _event(CollectionBegun(1, 0, 8, b"c8")),
    "8 ends in 0": _event(CollectionEnded(1, 0, 8)),
    "9 begins in 8": _event(CollectionBegun(1, 8, 9, b"c9", 30)),
    "7 ends in 8": _event(CollectionEnded(1, 8, 7)),
    "scope 8 comes": _event(ScopeCreated(1, 8, b"s8")),
    "scope 8 goes": _event(ScopeDropped(1, 8)),
    "scope 9 goes": _event(ScopeDropped(1, 9)),
}


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (EVERYTHING, ITEMS.keys() - {"prepare 0", "prepare 8"}),
        (replace(EVERYTHING, sync_writes=True), ITEMS.keys()),
        (LEGACY, {"document 0"}),
        (replace(LEGACY, sync_writes=True), {"document 0", "prepare 0"}),
        (_some(8), {"document 8", "8 begins in 0", "8 ends in 0"}),
        (_some(0, 8), {"document 0", "document 8", "8 begins in 0", "8 ends in 0"}),
        (_some(), set()),
        (SCOPE, {"document 9", "9 begins in 8", "7 ends in 8", "scope 8 comes", "scope 8 goes"}),
    ],
)
def test_what_passes(wanted: StreamFilter, shown: set[str]) -> None:
    assert {name for name, item in ITEMS.items() if wanted.passes(item)} == shown


@pytest.mark.parametrize(
    ("wanted", "item", "then"),
    [
        (_some(8, 9), "8 ends in 0", _some(9)),
        (_some(8), "8 ends in 0", replace(_some(), is_empty=True)),
        (_some(), "8 ends in 0", _some()),
        (_some(8), "7 ends in 8", _some(8)),
        (_some(8), "scope 8 goes", _some(8)),
        (_some(8), "9 begins in 8", _some(8)),
        (SCOPE, "7 ends in 8", SCOPE),
        (SCOPE, "8 begins in 0", SCOPE),
        (SCOPE, "scope 9 goes", SCOPE),
        (SCOPE, "scope 8 goes", replace(SCOPE, is_empty=True)),
        (
            StreamFilter(FilterKind.SCOPE, scope=8),
            "9 begins in 8",
            replace(SCOPE, collections=frozenset({9})),
        ),
        (EVERYTHING, "8 ends in 0", EVERYTHING),
        (LEGACY, "8 ends in 0", LEGACY),
        (LEGACY, "document 0", LEGACY),
    ],
)
def test_events_change_a_filter(wanted: StreamFilter, item: str, then: StreamFilter) -> None:
    assert wanted.after(ITEMS[item]) == then


def test_what_an_empty_filter_ends_with() -> None:
    """Clients without Collections know no reason for it (as recorded in 05b)."""
    gone = LEGACY.after(_event(CollectionEnded(4, 0, 0)))
    assert (gone.is_empty, gone.end_reason) == (True, EndReason.OK)
    assert SCOPE.after(ITEMS["scope 8 goes"]).end_reason is EndReason.FILTER_EMPTY


def test_a_split_follows_the_events_on_its_way() -> None:
    items = [_document(9), ITEMS["9 begins in 8"], _document(9), ITEMS["scope 8 goes"]]
    shown, then = StreamFilter(FilterKind.SCOPE, scope=8).split(items)
    assert shown == items[1:]
    assert then.is_empty


@pytest.mark.parametrize(
    ("wanted", "high"),
    [(EVERYTHING, None), (LEGACY, 5), (_some(8), 7), (_some(0, 8), 7), (_some(9), 0), (_some(), 0)],
)
def test_the_high_seqno_of_what_is_named(wanted: StreamFilter, high: int | None) -> None:
    assert wanted.high_seqno({0: 5, 8: 7, 0x1F4: 9}) == high
