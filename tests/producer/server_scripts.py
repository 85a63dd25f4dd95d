"""Sessions of the kinds that facts about a real server tell of: durable writes, restarts, names."""

from dcp.producer.bucket import failover
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, StreamFlag
from tests.producer.scripted_session import COLLECTIONS, NOOP, PLAIN, ScriptedSession


def prepares_in_a_window(s: ScriptedSession) -> None:
    s.write(1, 2)
    s.prepare(3, 4, 5)
    sync = ("enable_sync_writes", "true")
    client = s.open(COLLECTIONS, controls=[("connection_buffer_size", "200"), *NOOP, sync])
    s.stream(client)
    for _ in range(12):
        s.acknowledge(client)
    s.prepare(6, 3)
    for _ in range(6):
        s.acknowledge(client)
    s.leave(client)


def aborted_writes(s: ScriptedSession) -> None:
    s.write(1, 2)
    s.prepare(3)
    s.prepare(4, 1, aborts=True)
    sync = ("enable_sync_writes", "true")
    kinds: list[tuple[tuple[int, ...], tuple[tuple[str, str], ...]]] = [
        (PLAIN, ()),
        (COLLECTIONS, ()),
        (COLLECTIONS, (sync,)),
        (COLLECTIONS, (sync, ("consumer_name", "replica"))),
    ]
    for from_disk in (False, True):
        for features, controls in kinds:
            for flags in (0, StreamFlag.TO_LATEST, StreamFlag.DISK_ONLY):
                if from_disk:
                    s.to_disk()
                client = s.open(features, controls=[*NOOP, *controls])
                s.stream(client, flags=flags)
                s.leave(client)
    live = [s.open(features, controls=[*NOOP, *controls]) for features, controls in kinds]
    for client in live:
        s.stream(client)
    s.prepare(5, aborts=True)
    s.prepare(5)
    s.write(6)
    s.leave(*live)


def markers_of_version_2(s: ScriptedSession) -> None:
    s.write(1, 2)
    s.prepare(3)
    s.prepare(2, aborts=True)
    sync = ("enable_sync_writes", "true")
    for from_disk in (False, True):
        if from_disk:
            s.to_disk()
        client = s.open(COLLECTIONS, controls=[*NOOP, ("max_marker_version", "2.2"), sync])
        s.stream(client)
        s.write(4)
        s.leave(client)


def a_cursor_is_dropped(s: ScriptedSession) -> None:
    body = b'"' + b"z" * 2000 + b'"'
    s.write(1, 2, 3)
    window = ("connection_buffer_size", "3000")
    client = s.open(controls=[*NOOP, window, ("supports_cursor_dropping_vulcan", "true")])
    s.stream(client)
    s.write(4, 5, value=body)
    for first in range(10, 90, 20):
        s.write(*range(first, first + 20), value=body)
    s.write(10, 11, value=body)
    for _ in range(30):
        s.acknowledge(client)
    s.write(5)
    s.acknowledge(client)
    s.acknowledge(client)
    s.leave(client)


def a_large_document(s: ScriptedSession) -> None:
    client = s.open(controls=[*NOOP, ("connection_buffer_size", "1048576")])
    s.stream(client)
    s.write(1, value=b"v" * 3_000_000)
    s.write(2)
    s.acknowledge(client, 1_500_000)
    s.acknowledge(client)
    s.write(3)
    s.leave(client)


def a_restarted_server(s: ScriptedSession) -> None:
    s.write(*range(6))
    before = s.open()
    s.stream(before)
    s.write(1)
    s.leave(before)
    failover.crash(s.cluster.bucket, 0, 0)
    after = s.open()
    after.positions = before.positions
    s.stream(after)
    s.write(2)
    s.leave(after)
    fresh = s.open(COLLECTIONS)
    s.ask(fresh, m.Empty(), Opcode.DCP_GET_FAILOVER_LOG)
    s.stream(fresh)
    s.leave(fresh)


def dropped_collections(s: ScriptedSession) -> None:
    orders = s.cluster.create_collection("_default", "orders")
    s.write(1, 2)
    s.write(1, 2, collection=orders)
    plain, all_, mine = s.open(), s.open(COLLECTIONS), s.open(COLLECTIONS)
    s.stream(plain)
    s.stream(all_)
    s.stream(mine, collections=[f"{orders:x}"])
    s.cluster.flush_collection("_default", "orders")
    s.wait(0.5)
    s.write(3, collection=orders)
    s.cluster.drop_collection("_default", "orders")
    s.wait(0.5)
    s.cluster.drop_collection("_default", "_default")
    s.wait(0.5)
    s.stream(plain)
    late = s.open()
    s.stream(late)
    s.leave(plain, all_, mine, late)


def only_a_plain_client_while_collections_change(s: ScriptedSession) -> None:
    plain = s.open()
    s.write(1, 2)
    s.stream(plain)
    orders = s.cluster.create_collection("_default", "orders")
    s.write(3)
    s.write(4, 5, collection=orders)
    s.write(6)
    s.cluster.drop_collection("_default", "orders")
    s.write(7)
    s.cluster.drop_collection("_default", "_default")
    s.wait(0.5)
    s.leave(plain)


def filters_alone(s: ScriptedSession) -> None:
    scope = s.cluster.create_scope("shop")
    orders = s.cluster.create_collection("shop", "orders")
    s.cluster.create_collection("_default", "never")
    s.write(1)
    s.write(2, 3, collection=orders)
    s.write(4)
    client = s.open(COLLECTIONS)
    s.stream(client, collections=["99"])
    s.stream(client, scope=f"{scope:x}")
    s.ask(client, m.GetId(b"shop.orders"), Opcode.GET_COLLECTION_ID)
    s.ask(client, m.GetId(b"_default.never"), Opcode.GET_COLLECTION_ID)
    s.ask(client, m.GetId(b"_default.nowhere"), Opcode.GET_COLLECTION_ID)
    s.write(5)
    s.write(2, collection=orders)
    s.leave(client)


def documents_are_read_before_anybody_streams(s: ScriptedSession) -> None:
    s.write(1, 2, 3, 2)
    reader = s.log_in()
    for number in (2, 3, 2):
        s.ask(reader, m.KeyOnly(b"doc-%d" % number), Opcode.GET)
    s.ask(reader, m.Store(b"doc-2", b'{"by":"request"}', 3, 0), Opcode.REPLACE)
    s.write(4)
    s.to_disk()
    client = s.open()
    s.stream(client)
    s.leave(client, reader)


def two_collections_by_name(s: ScriptedSession) -> None:
    for name in ("users", "orders"):
        s.cluster.create_collection("_default", name)
    s.write(1, collection=8)
    s.write(2, collection=9)
    client = s.open(COLLECTIONS)
    s.ask(client, m.GetId(b"_default.orders"), Opcode.GET_COLLECTION_ID)
    s.stream(client, collections=["9"])
    s.write(3, collection=9)
    s.write(3, collection=8)
    s.leave(client)
    asks = s.log_in(COLLECTIONS)
    s.ask(asks, m.GetId(b"_default.users"), Opcode.GET_COLLECTION_ID)
    s.ask(asks, m.Empty(), Opcode.GET_COLLECTIONS_MANIFEST)
    s.leave(asks)
