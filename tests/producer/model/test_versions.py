"""Versions on the wire: sync writes as recorded, system events, keys and sizes."""

import pytest

from dcp.server.model.versions import Content, Flavour, SyncWrite, Version
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.snappy import deflate
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
)
from dcp.wire.vocabulary import Datatype, Opcode, SystemEventKind
from dcp.wire.xattr import join_xattrs

COLLECTIONS = int(Flavour.COLLECTIONS)
SYNC = int(Flavour.COLLECTIONS | Flavour.COMMITS)


def _version(content: Content, *, seqno: int = 3, collection: int = 0) -> Version:
    return Version(1, b"s0", content, seqno=seqno, rev=2, cas=99, collection=collection)


def _frame(version: Version, flavour: int) -> Frame:
    block = FrameSplitter().feed(b"".join(version.wire(flavour)))
    return block.frame(0)


PREPARE = Content(
    b"{}",
    int(Datatype.JSON),
    flags=7,
    expiry=8,
    opcode=int(Opcode.DCP_PREPARE),
    sync=SyncWrite(level=1, deletes=True),
)
ABORT = Content(opcode=int(Opcode.DCP_ABORT), sync=SyncWrite(prepared_seqno=2))
COMMIT = Content(b"{}", int(Datatype.JSON), sync=SyncWrite(prepared_seqno=2))
DELETION = Content(opcode=int(Opcode.DCP_DELETION), delete_time=5)
COMMITTED_DELETION = DELETION._replace(sync=SyncWrite(prepared_seqno=2))


@pytest.mark.parametrize(
    ("content", "flavour", "opcode", "body", "envelope"),
    [
        (
            PREPARE,
            COLLECTIONS,
            Opcode.DCP_PREPARE,
            m.Prepare(b"\x00s0", b"{}", 3, 2, 7, 8, 0, 0, 1, 1),
            (99, 1),
        ),
        (PREPARE, 0, Opcode.DCP_PREPARE, m.Prepare(b"s0", b"{}", 3, 2, 7, 8, 0, 0, 1, 1), (99, 1)),
        (ABORT, COLLECTIONS, Opcode.DCP_ABORT, m.Abort(b"\x00s0", 2, 3), (0, 0)),
        (ABORT, 0, Opcode.DCP_ABORT, m.Abort(b"s0", 2, 3), (0, 0)),
        (COMMIT, SYNC, Opcode.DCP_COMMIT, m.Commit(b"\x00s0", 2, 3), (0, 0)),
        (
            COMMIT,
            COLLECTIONS,
            Opcode.DCP_MUTATION,
            m.Mutation(b"\x00s0", b"{}", 3, 2, cache_hint=2),
            (99, 1),
        ),
        (COMMITTED_DELETION, SYNC, Opcode.DCP_COMMIT, m.Commit(b"\x00s0", 2, 3), (0, 0)),
        (
            COMMITTED_DELETION,
            0,
            Opcode.DCP_DELETION,
            m.Deletion(b"s0", 3, 2, nmeta=0),
            (99, 0),
        ),
        (DELETION, SYNC, Opcode.DCP_DELETION, m.Deletion(b"\x00s0", 3, 2, nmeta=0), (99, 0)),
    ],
)
def test_frames_of_sync_writes(
    content: Content, flavour: int, opcode: Opcode, body: m.Body, envelope: tuple[int, int]
) -> None:
    frame = _frame(_version(content), flavour)
    assert (frame.opcode, frame.vbucket_or_status) == (opcode, 1)
    assert decode(frame) == body
    assert (frame.cas, frame.datatype) == envelope


@pytest.mark.parametrize(
    ("event", "kind", "key", "version"),
    [
        (CollectionBegun(1, 8, 9, b"c9"), SystemEventKind.BEGIN_COLLECTION, b"c9", 0),
        (CollectionBegun(1, 8, 9, b"c9", 30), SystemEventKind.BEGIN_COLLECTION, b"c9", 1),
        (CollectionEnded(1, 8, 9), SystemEventKind.END_COLLECTION, b"", 0),
        (ScopeCreated(1, 8, b"s8"), SystemEventKind.CREATE_SCOPE, b"s8", 0),
        (ScopeDropped(1, 8), SystemEventKind.DROP_SCOPE, b"", 0),
    ],
)
@pytest.mark.parametrize("flavour", [0, COLLECTIONS, SYNC, int(Flavour.NO_VALUE)])
def test_frames_of_system_events(
    event: ManifestEvent, kind: SystemEventKind, key: bytes, version: int, flavour: int
) -> None:
    frame = _frame(Version.of_event(1, event, seqno=4), flavour)
    body = decode(frame)
    assert isinstance(body, m.SystemEvent)
    assert (body.by_seqno, body.event, body.key, body.version) == (4, kind, key, version)
    assert (frame.cas, frame.datatype, len(frame.value)) == (0, 0, len(body.value))
    assert body.value


def test_keys_tell_what_is_kept_once() -> None:
    """Prepares are apart from documents, collections from each other; events are all kept."""
    documents = [_version(content) for content in (COMMIT, DELETION, COMMITTED_DELETION)]
    assert len({version.dedup_key for version in documents}) == 1
    assert _version(PREPARE).dedup_key == _version(ABORT).dedup_key != documents[0].dedup_key
    assert _version(COMMIT, collection=8).dedup_key != documents[0].dedup_key
    begun, ended = (
        Version.of_event(0, event, seqno=4)
        for event in (CollectionBegun(1, 8, 9, b"c9"), CollectionEnded(2, 8, 9))
    )
    scope = Version.of_event(0, ScopeCreated(1, 9, b"s"), seqno=4)
    assert (begun.dedup_key, begun.stored_key) == (None, ended.stored_key)
    assert len({begun.stored_key, scope.stored_key, documents[0].stored_key}) == 3


@pytest.mark.parametrize(
    ("content", "mutation", "deleted", "document", "visible"),
    [
        (COMMIT, True, False, True, True),
        (DELETION, False, True, True, True),
        (COMMITTED_DELETION, False, True, True, True),
        (DELETION._replace(opcode=int(Opcode.DCP_EXPIRATION)), False, True, True, True),
        (PREPARE, False, False, False, False),
        (ABORT, False, False, False, False),
    ],
)
def test_what_a_version_is(
    content: Content, mutation: bool, deleted: bool, document: bool, visible: bool
) -> None:
    found = _version(content)
    assert (found.is_mutation, found.is_deleted) == (mutation, deleted)
    assert (found.is_document, found.is_visible) == (document, visible)


def test_an_inflated_value_is_not_kept() -> None:
    """What is kept in memory is what ``size_bytes`` counts, and heads of frames."""
    content = Content(deflate(b"x" * 100_000), int(Datatype.SNAPPY))
    version = _version(content)
    compressed = int(Flavour.SNAPPY)
    assert version.wire(compressed) is version.wire(compressed)
    first = version.wire(0)
    assert first[1] == b"x" * 100_000
    assert version.wire(0) == first
    assert version.wire(0)[1] is not first[1]


def test_sizes_grow_with_key_and_value() -> None:
    small = _version(COMMIT)
    large = _version(COMMIT._replace(value=b"x" * 1002))
    assert large.size_bytes - small.size_bytes == 1000
    assert small.size_bytes > len(small.key) + len(small.value)


XATTRS = int(Flavour.XATTRS)
SNAPPY = int(Flavour.SNAPPY)
COMPRESSED = deflate(bytes(10_000))
WITH_XATTRS = join_xattrs(((b"_x", b"1"),), b"{}")


@pytest.mark.parametrize(
    ("value", "datatype", "flavour", "sent", "is_kept"),
    [
        (b"{}", Datatype.JSON, 0, b"{}", True),
        (COMPRESSED, Datatype.SNAPPY, SNAPPY, COMPRESSED, True),
        (COMPRESSED, Datatype.SNAPPY, 0, bytes(10_000), False),
        (WITH_XATTRS, Datatype.XATTR, XATTRS, WITH_XATTRS, True),
        (WITH_XATTRS, Datatype.XATTR, 0, b"{}", False),
        (bytes(10_000), Datatype.RAW, SNAPPY | int(Flavour.COMPRESSED), COMPRESSED, False),
        (b"{}", Datatype.JSON, int(Flavour.NO_VALUE), b"", True),
    ],
)
def test_frames_are_kept_unless_their_value_is_not_the_stored_one(
    value: bytes, datatype: Datatype, flavour: int, sent: bytes, *, is_kept: bool
) -> None:
    """No quota counts a value that was reshaped."""
    version = _version(Content(value, int(datatype)))
    first = version.wire(flavour)
    assert first[1] == sent
    assert version.wire(flavour) == first
    assert (version.wire(flavour) is first) == is_kept
