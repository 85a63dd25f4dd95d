"""The stored frames that streams show, against one version after the other; and where that ends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.key_quota import KeyQuota
from dcp.server.model.stream_filter import EVERYTHING, LEGACY, FilterKind, StreamFilter
from dcp.server.model.versions import Content, Flavour, SyncWrite, Version
from dcp.server.storage.disk_file import MemoryFile
from dcp.server.storage.disk_store import VbucketStore
from dcp.server.storage.stored_items import stored_item, versions_of
from dcp.server.streams import key_order, snapshots
from dcp.server.streams.key_order import KeyOrderItems
from dcp.server.streams.snapshots import DiskItems, SnapshotItems
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.snappy import deflate
from dcp.wire.system_event import CollectionBegun, CollectionEnded, CollectionFlushed
from dcp.wire.vocabulary import Datatype, Opcode
from dcp.wire.xattr import join_xattrs
from tests.producer.raw_client import RawClient

COLLECTIONS = (0, 8, 0x7F, 0x80, 0x3FFF, 0x4000, 2**32 - 1)
XATTRS = join_xattrs([(b"_sys", b"1"), (b"user", b"2")], b"body")
VALUES = {
    0: b"plain",
    int(Datatype.JSON): b"{}" * 40,
    int(Datatype.XATTR): XATTRS,
    int(Datatype.SNAPPY): deflate(b"x" * 100),
    int(Datatype.SNAPPY | Datatype.XATTR): deflate(XATTRS),
}
FLAVOURS = [int(flavour) for flavour in Flavour if flavour is not Flavour.KEYS_ONLY]

contents = st.builds(
    lambda opcode, datatype: Content(
        b"" if opcode == Opcode.DCP_ABORT else VALUES[datatype],
        0 if opcode == Opcode.DCP_ABORT else datatype,
        opcode=int(opcode),
        delete_time=9 if opcode in (Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION) else 0,
        sync=SyncWrite(1) if opcode == Opcode.DCP_ABORT else None,
    ),
    st.sampled_from(
        [Opcode.DCP_MUTATION] * 4
        + [Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION, Opcode.DCP_PREPARE, Opcode.DCP_ABORT]
    ),
    st.sampled_from(list(VALUES)),
)
documents = st.tuples(contents, st.sampled_from(COLLECTIONS), st.binary(min_size=1, max_size=5))
events = st.sampled_from(
    [CollectionBegun(1, 0, 8, b"a"), CollectionEnded(2, 0, 8), CollectionEnded(2, 0, 0)]
)
items = st.lists(st.one_of(documents, documents, documents, events), min_size=1, max_size=25)
filters = st.one_of(
    st.sampled_from([EVERYTHING, LEGACY, replace(LEGACY, sync_writes=True)]),
    st.builds(
        StreamFilter,
        st.just(FilterKind.COLLECTIONS),
        st.frozensets(st.sampled_from(COLLECTIONS), min_size=1),
        sync_writes=st.booleans(),
    ),
)
flavours = st.sets(st.sampled_from(FLAVOURS)).map(sum)


def _versions(items: list[Any]) -> list[Version]:
    found = []
    for seqno, item in enumerate(items, 1):
        if isinstance(item, tuple):
            content, collection, key = item
            how = {"seqno": seqno, "rev": 2, "cas": 3, "collection": collection}
            found.append(Version(1, key, content, **how))
        else:
            found.append(Version.of_event(1, item, seqno=seqno))
    return found


def _stored(versions: list[Version]) -> VbucketStore:
    store = VbucketStore(MemoryFile(), 1)
    store.write([stored_item(version, (), 0) for version in versions], b"")
    return store


def _sent(
    items: SnapshotItems, most_bytes: int, most_items: int = 1 << 30
) -> tuple[bytes, list[int]]:
    """What is sent of the items; what is not sent of a chunk goes back and comes again."""
    data, seqnos = b"", list[int]()
    while (chunk := items.next_chunk(most_bytes)) is not None:
        taken = chunk.take(1 << 30, 1 << 30, most_items, opaque=0)
        data, seqnos = data + bytes(taken.data), seqnos + taken.seqnos.tolist()
        if not chunk.is_empty:
            items.put_back(chunk.left_seqnos)
    items.close()
    return data, seqnos


@given(items, flavours, filters, st.integers(1, 1000), st.sampled_from([1, 2, 1 << 30]))
def test_streams_show_what_each_version_would_be(
    items: list[Any], flavour: int, wanted: StreamFilter, most_bytes: int, most_items: int
) -> None:
    versions = _versions(items)
    disk_items = DiskItems(_stored(versions).scan(0, each_key_once=True), flavour, wanted)
    shown, behind = wanted.split(versions)
    read = Flavour.XATTRS | Flavour.UNDERLYING_DATATYPE
    needs_values = flavour & read or not flavour & Flavour.NO_VALUE
    reshaped = flavour & ~Flavour.COMMITS | (0 if needs_values else Flavour.KEYS_ONLY)
    wires = [b"".join(version.wire(int(reshaped))) for version in shown]
    event(f"shown {len(shown) * 4 // len(versions)}/4")
    assert _sent(disk_items, most_bytes, most_items) == (b"".join(wires), [v.seqno for v in shown])
    assert disk_items.filter == behind


@given(items, st.sampled_from([0, int(Flavour.COLLECTIONS)]), filters, st.integers(1, 2000))
def test_in_the_order_of_keys_it_is_the_same(
    items: list[Any], flavour: int, wanted: StreamFilter, turn_bytes: int
) -> None:
    """In however many turns keys are read."""
    versions = _versions(items)
    scan = _stored(versions).scan(0, each_key_once=True)
    by_key = KeyOrderItems(scan, DiskItems(scan, flavour, wanted), KeyQuota())
    shown, behind = wanted.split(versions)
    shown.sort(key=lambda version: (version.event is None, version.key, version.seqno))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_order, "TURN_BYTES", turn_bytes)
        patched.setattr(key_order, "_READ_BYTES", turn_bytes // 3)
        data, seqnos = _sent(by_key, 100, 2)
    assert data == b"".join(b"".join(version.wire(flavour)) for version in shown)
    assert seqnos == [version.seqno for version in shown]
    assert (by_key.filter, by_key.last_seqno) == (behind, max(seqnos, default=0))


@pytest.mark.parametrize("by_key", [False, True])
def test_nobody_waits_while_much_is_looked_through(
    cluster: ProducerCluster,
    connect: Callable[..., RawClient],
    monkeypatch: pytest.MonkeyPatch,
    by_key: bool,
) -> None:
    """A stream of which little is shown gives way to others on its connection."""
    for module in (snapshots, key_order):
        monkeypatch.setattr(module, "TURN_BYTES", 1000)
    monkeypatch.setattr(key_order, "_READ_BYTES", 1000)
    rare = cluster.create_collection("", "rare")
    with cluster.batch():
        for key in range(200):
            cluster.set(b"k%d" % key, b"x" * 100)
        cluster.set(b"rare", b"1", collection=rare)
        cluster.set(b"last", b"1")
    cluster.bucket.vbuckets[0].data.checkpoints.expel()
    controls: dict[str, Any] = {"enable_out_of_order_snapshots": "true"} if by_key else {}
    dcp = connect(cluster).log_in().open_dcp(**controls)
    dcp.request_stream(0, value=b'{"collections":["%x"]}' % rare)
    told = dcp.messages_until(lambda body: isinstance(body, m.Mutation))
    assert [type(body) for body in told[:-1]] == [
        m.OsoSnapshot if by_key else m.SnapshotMarker,
        m.SystemEvent,
    ]


# --- where it ends for clients without Collections

_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.sampled_from(["set", "set", "delete", "prepare", "abort", "flush"]),
            st.sampled_from([0, 0, 8]),
            st.sampled_from([b"a", b"b"]),
        ),
        st.tuples(st.sampled_from(["to_disk", "to_disk", "purge", "reopen"])),
        st.tuples(st.just("cut"), st.integers(0, 5)),
    ),
    max_size=25,
)


class _Driven:
    def __init__(self) -> None:
        self.file = MemoryFile()
        self.data = self._open()

    def _open(self) -> VbucketData:
        return VbucketData(0, self.file, ClusterSettings(), writes_behind=True)

    def write(self, what: str, collection: int, key: bytes) -> None:
        seqno = self.data.high_seqno + 1
        contents = {
            "set": Content(b"{}"),
            "delete": Content(opcode=int(Opcode.DCP_DELETION)),
            "prepare": Content(b"{}", opcode=int(Opcode.DCP_PREPARE), sync=SyncWrite(level=1)),
            "abort": Content(opcode=int(Opcode.DCP_ABORT), sync=SyncWrite(max(seqno - 1, 1))),
        }
        if what == "flush":
            version = Version.of_event(0, CollectionFlushed(1, collection), seqno=seqno)
        else:
            how = {"seqno": seqno, "rev": 1, "cas": seqno, "collection": collection}
            version = Version(0, key, contents[what], **how)
        self.data.append(version)
        self.data.flush_batch()

    def to_disk(self) -> None:
        self.data.persistence.flush()

    def purge(self) -> None:
        if self.data.disk.persisted_seqno:
            self.data.persistence.purge(self.data.high_seqno)

    def cut(self, back: int) -> None:
        self.data.cut(self.data.disk.batch_end_at(max(self.data.high_seqno - back, 0)))

    def reopen(self) -> None:
        self.to_disk()
        self.data.close()
        self.data = self._open()
        self.data.reopen(0)


@example(
    [
        ("write", "delete", 0, b"a"),
        ("write", "set", 8, b"a"),
        ("to_disk",),
        ("purge",),
    ]
)
@example(
    [
        ("write", "set", 0, b"a"),
        ("write", "set", 8, b"a"),
        ("to_disk",),
        ("write", "set", 0, b"a"),
        ("purge",),
    ]
)
@given(_steps)
def test_the_last_item_that_old_clients_are_shown_is_known(steps: list[tuple[Any, ...]]) -> None:
    driven = _Driven()
    for name, *arguments in steps:
        getattr(driven, name)(*arguments)
        with driven.data.disk.scan(0) as scan:
            frames = scan.read(1 << 30)
        versions = [] if frames is None else versions_of(frames)
        for sync_writes in (False, True):
            shown, _ = replace(LEGACY, sync_writes=sync_writes).split(versions)
            expected = shown[-1].seqno if shown else 0
            assert driven.data.disk.legacy_end(sync_writes=sync_writes) == expected
