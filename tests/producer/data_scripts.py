"""Sessions about data: collections, sync writes, values; of the kinds that are recorded."""

from typing import Any

from dcp.wire import messages as m
from dcp.wire import snappy, xattr
from dcp.wire.vocabulary import (
    Datatype,
    HelloFeature,
    Opcode,
    OpenFlag,
    StreamFlag,
    VbucketState,
)
from tests.producer.durable_requests import MAJORITY
from tests.producer.scripted_session import COLLECTIONS, DURABLE, NOOP, PLAIN, ScriptedSession


def filters_from_disk_and_live(s: ScriptedSession) -> None:
    scope = s.cluster.create_scope("shop")
    orders = s.cluster.create_collection("shop", "orders")
    users = s.cluster.create_collection("_default", "users")
    s.write(1, 2, 3)
    s.write(1, 2, collection=orders)
    s.write(4, 5, collection=users)
    s.write(6)
    s.to_disk()
    clients = [s.open(COLLECTIONS) for _ in range(5)]
    s.stream(clients[0], scope=f"{scope:x}")
    s.stream(clients[1], collections=[f"{orders:x}"])
    s.stream(clients[2], collections=[f"{users:x}", "0"])
    s.stream(clients[3])
    s.stream(clients[4], collections=["0"])
    plain = s.open()
    s.stream(plain)
    s.write(7, 8)
    s.write(8, collection=orders)
    s.write(9, collection=users)
    s.delete(1, collection=orders)
    s.cluster.create_collection("shop", "baskets")
    s.wait(0.5)
    s.cluster.drop_collection("shop", "orders")
    s.wait(0.5)
    s.write(3)
    s.leave(*clients, plain)


def collections_from_memory(s: ScriptedSession) -> None:
    scope = s.cluster.create_scope("s8")
    eight = s.cluster.create_collection("s8", "c8")
    nine = s.cluster.create_collection("_default", "c9")
    gone = s.cluster.create_collection("_default", "gone")
    for collection in (0, eight, nine, gone):
        s.write(1, 2, 3, collection=collection)
        s.delete(2, collection=collection)
    s.cluster.drop_collection("_default", "gone")
    s.write(5)
    filters: list[dict[str, Any]] = [
        {},
        {"collections": [f"{eight:x}"]},
        {"collections": [f"{nine:x}", f"{eight:x}"]},
        {"collections": ["0"]},
        {"scope": f"{scope:x}"},
        {"collections": [f"{gone:x}"]},
        {"scope": "77"},
        {"collections": ["zz"]},
    ]
    plain = s.open()
    s.stream(plain, flags=StreamFlag.TO_LATEST)
    s.leave(plain)
    for filter_ in filters:
        for flags in (0, StreamFlag.TO_LATEST):
            client = s.open(COLLECTIONS)
            s.stream(client, flags=flags, **filter_)
            s.leave(client)
    manifest = s.log_in(COLLECTIONS)
    s.ask(manifest, m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)
    s.leave(manifest)


def statistics(s: ScriptedSession) -> None:
    s.write(*range(6))
    client = s.open()
    s.stream(client)
    asks = s.log_in()
    for group in (b"", b"dcp", b"vbucket", b"vbucket-seqno", b"failovers", b"vbucket-details 0"):
        s.ask(asks, m.Stat(group), Opcode.STAT)
        s.write(1)
    s.ask(asks, m.Stat(b"nonsense"), Opcode.STAT)
    s.leave(client, asks)


def seqnos_by_state_and_collection(s: ScriptedSession) -> None:
    orders = s.cluster.create_collection("_default", "orders")
    s.write(*range(8))
    s.write(1, 2, collection=orders)
    s.cluster.set_vbucket_state(1, VbucketState.REPLICA)
    s.wait(0.5)
    for features in (PLAIN, COLLECTIONS):
        client = s.log_in(features)
        bodies = [m.GetAllVbSeqnos(), *(m.GetAllVbSeqnos(state) for state in (0, 1, 2, 3, 4, 9))]
        for body in (*bodies, m.GetAllVbSeqnos(1, 0), m.GetAllVbSeqnos(1, orders)):
            s.ask(client, body, Opcode.GET_ALL_VB_SEQNOS)
        s.ask(client, m.GetAllVbSeqnos(1, 77), Opcode.GET_ALL_VB_SEQNOS)
        s.leave(client)
    client = s.open(COLLECTIONS)
    s.stream(client, 0)
    s.stream(client, 1)
    s.leave(client)


def data_kinds(s: ScriptedSession) -> None:
    flat = xattr.join_xattrs([(b"_sync", b'{"rev":1}'), (b"meta", b"1")], b'{"a":1}')
    deflated = snappy.deflate(b'{"long":"' + b"x" * 100 + b'"}')
    s.cluster.set(b"json", b'{"a":1}', flags=0x2000006)
    s.cluster.set(b"raw", b"\x00\x01", flags=7)
    s.cluster.set(b"xattrs", flat, datatype=Datatype.XATTR)
    s.cluster.set(b"deflated", deflated, datatype=Datatype.SNAPPY)
    s.cluster.set(b"both", snappy.deflate(flat), datatype=Datatype.XATTR | Datatype.SNAPPY)
    s.cluster.set(b"empty", b"")
    s.cluster.set(b"dies", b"{}", expiry=1)
    s.cluster.set(b"lives", b"{}", expiry=1000)
    s.cluster.set(b"gone", b"{}")
    s.cluster.delete(b"gone")
    s.wait(3.0)
    s.cluster.expire_due()
    xattrs = OpenFlag.INCLUDE_XATTRS
    kinds: list[tuple[tuple[int, ...], int, tuple[str, ...]]] = [
        (PLAIN, 0, ()),
        ((HelloFeature.XERROR, HelloFeature.SELECT_BUCKET), 0, ()),
        ((HelloFeature.JSON, HelloFeature.SELECT_BUCKET, HelloFeature.XERROR), xattrs, ()),
        (PLAIN, xattrs, ()),
        (PLAIN, OpenFlag.INCLUDE_DELETE_TIMES, ("enable_expiry_opcode",)),
        (PLAIN, OpenFlag.INCLUDE_DELETE_TIMES, ()),
        (PLAIN, 0, ("enable_expiry_opcode",)),
        (PLAIN, OpenFlag.NO_VALUE, ()),
        (PLAIN, OpenFlag.NO_VALUE | xattrs, ()),
        (PLAIN, OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE, ()),
        (PLAIN, xattrs | OpenFlag.INCLUDE_DELETED_USER_XATTRS, ()),
        (PLAIN, 0, ("force_value_compression",)),
    ]
    for from_disk in (False, True):
        for features, flags, names in kinds:
            if from_disk:
                s.to_disk()
            controls = [*NOOP, *((name, "true") for name in names)]
            client = s.open(features, flags=flags, controls=controls)
            s.stream(client, flags=StreamFlag.TO_LATEST)
            s.leave(client)


def sync_writes(s: ScriptedSession) -> None:
    writer = s.log_in(DURABLE)
    for number in range(4):
        s.write(number)
        body = m.Store(b"durable-%d" % (number % 3), b'{"d":%d}' % number, 0, 0)
        s.r.ask(writer, body, Opcode.SET, framing_extras=MAJORITY)
    s.wait(0.5)
    s.r.close(writer)
    s.r.lines.clear()  # the recording begins here
    sync = ("enable_sync_writes", "true")
    replica = ("enable_sync_writes", "true"), ("consumer_name", "replica")
    for from_disk in (False, True):
        for features, controls, flags in (
            (PLAIN, (), 0),
            (PLAIN, (), StreamFlag.TO_LATEST),
            (COLLECTIONS, (), 0),
            (COLLECTIONS, (), StreamFlag.TO_LATEST),
            (COLLECTIONS, (sync,), 0),
            (PLAIN, (sync,), 0),
            (COLLECTIONS, replica, 0),
        ):
            if from_disk:
                s.to_disk()
            client = s.open(features, controls=[*NOOP, *controls])
            s.stream(client, flags=flags)
            s.leave(client)


def one_durable_write_among_others(s: ScriptedSession) -> None:
    writer = s.log_in(DURABLE)
    s.write(1, 2)
    body = m.Store(b"durable", b"{}", 0, 0)
    s.r.ask(writer, body, Opcode.SET, framing_extras=MAJORITY)
    s.write(3, 4)
    s.r.close(writer)
    s.r.lines.clear()  # nobody is seen to have written
    client, other = s.open(), s.open((HelloFeature.SELECT_BUCKET, HelloFeature.XERROR))
    s.stream(client)
    s.stream(other)
    s.write(5)
    s.leave(client, other)


def purged_tombstones(s: ScriptedSession) -> None:
    s.write(*range(10))
    s.delete(3, 4)
    s.write(11, 12)
    s.delete(11)
    s.write(13)
    first = s.open()
    s.stream(first)
    s.leave(first)
    s.cluster.purge_tombstones(0, 14)
    s.to_disk()
    for start, snapshot in (
        (0, (0, 0)),
        (6, (6, 6)),
        (13, (10, 16)),
        (12, (12, 12)),
        (14, (14, 14)),
    ):
        client = s.open()
        s.resume(client, start, snapshot)
        s.leave(client)
    s.write(14)
    last = s.open()
    s.stream(last)
    s.leave(last)


def stream_ids(s: ScriptedSession) -> None:
    orders = s.cluster.create_collection("_default", "orders")
    s.write(1, 2, 3)
    s.write(4, 5, collection=orders)
    controls = [*NOOP, ("enable_stream_id", "true")]
    client = s.open(COLLECTIONS, controls=controls)
    s.stream(client)
    s.stream(client, sid=5, collections=["0"])
    client.positions.clear()
    s.stream(client, sid=9, collections=[f"{orders:x}"])
    client.positions.clear()
    s.stream(client, sid=5, collections=["0"])
    s.write(3)
    s.write(4, collection=orders)
    s.close_stream(client)
    s.write(3)
    s.leave(client)


def out_of_order(s: ScriptedSession) -> None:
    orders = s.cluster.create_collection("_default", "orders")
    users = s.cluster.create_collection("_default", "users")
    s.write(1, 2, 3)
    s.write(*range(9, 0, -1), collection=orders)
    s.write(4, 5, collection=users)
    s.delete(5, collection=orders)
    s.write(6)
    s.to_disk()
    controls = [*NOOP, ("enable_out_of_order_snapshots", "true")]
    for collections in ([orders], [orders, users], [0]):
        client = s.open(COLLECTIONS, controls=controls)
        s.stream(client, collections=[f"{each:x}" for each in collections])
        s.write(7, collection=orders)
        s.write(7)
        s.leave(client)
        s.to_disk()


def ephemeral(s: ScriptedSession) -> None:
    s.write(*range(6))
    s.write(1, 1, 2)
    s.delete(3)
    client = s.open()
    s.stream(client)
    s.write(7, 7, 7)
    other = s.open()
    s.stream(other)
    s.leave(client, other)


def a_cluster_map_and_documents(s: ScriptedSession) -> None:
    s.write(1, 2, 3)
    features = (*PLAIN, HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION, HelloFeature.DUPLEX)
    client = s.open(features)
    s.ask(client, m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    s.ask(client, m.GetClusterConfig(0, 1), Opcode.GET_CLUSTER_CONFIG)
    s.ask(client, m.GetClusterConfig(0, 10_000), Opcode.GET_CLUSTER_CONFIG)
    s.ask(client, m.Empty(), Opcode.VERSION)
    s.ask(client, m.Empty(), Opcode.NOOP)
    s.ask(client, m.Empty(), Opcode.SASL_LIST_MECHS)
    s.stream(client)
    writer = s.log_in((*PLAIN, HelloFeature.MUTATION_SEQNO))
    for opcode in (Opcode.SET, Opcode.ADD, Opcode.REPLACE):
        s.ask(writer, m.Store(b"doc-1", b'{"by":"request"}', 3, 0), opcode)
        s.ask(writer, m.Store(b"fresh-%d" % opcode, b"{}", 0, 0), opcode)
    s.ask(writer, m.KeyOnly(b"doc-2"), Opcode.DELETE)
    s.ask(writer, m.KeyOnly(b"doc-3"), Opcode.GET)
    s.ask(writer, m.Touch(b"doc-3", 100), Opcode.TOUCH)
    s.leave(client, writer)


def a_replica(s: ScriptedSession) -> None:
    s.write(*range(5))
    client = s.open()
    s.stream(client, 0)
    s.cluster.set_vbucket_state(0, VbucketState.REPLICA)
    s.wait(0.5)
    s.stream(client, 0)
    other = s.open()
    s.stream(other, 0, flags=StreamFlag.ACTIVE_VB_ONLY)
    s.stream(other, 0)
    s.cluster.set_vbucket_state(0, VbucketState.DEAD)
    s.wait(0.5)
    s.stream(other, 0)
    s.leave(client, other)
