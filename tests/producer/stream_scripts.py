"""Sessions about streams: windows, ends, NOOPs, rollbacks; of the kinds that are recorded."""

from dcp.producer.bucket import failover
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.vocabulary import (
    HelloFeature,
    Opcode,
    OpenFlag,
    StreamFlag,
)
from tests.producer.scripted_session import COLLECTIONS, NOOP, ScriptedSession


def two_vbuckets_on_one_connection(s: ScriptedSession) -> None:
    s.write(*range(10))
    s.to_disk()
    client = s.open()
    s.stream(client, 0)
    s.write(1, 2, 3, 4)
    s.stream(client, 1)
    s.write(*range(20, 30))
    s.delete(1, 20)
    s.leave(client)


def a_second_client_joins(s: ScriptedSession) -> None:
    s.write(*range(8))
    first = s.open()
    s.stream(first)
    s.write(3)
    s.write(3, 3, 3, 4)
    s.to_disk()
    second = s.open(mechanism="SCRAM-SHA512")
    s.stream(second)
    s.write(20, 21)
    s.leave(first)
    s.write(22, 20)
    third = s.open()
    s.stream(third)
    s.delete(22)
    s.leave(second, third)


def another_window(s: ScriptedSession) -> None:
    s.write(*range(12), value=b'"' + b"x" * 300 + b'"')
    s.to_disk()
    client = s.open(controls=[("connection_buffer_size", "700"), *NOOP])
    s.stream(client)
    for count in (1, 600, None, 300, None):
        s.acknowledge(client, count)
    s.write(*range(30, 34), value=b'"' + b"y" * 900 + b'"')
    s.control(client, "connection_buffer_size", "3000")
    s.wait(0.5)
    s.acknowledge(client)
    s.control(client, "connection_buffer_size", "0")
    s.wait(0.5)
    s.write(1, 2, 3)
    s.leave(client)


def a_window_of_two_streams(s: ScriptedSession) -> None:
    s.write(*range(12), value=b'"' + b"x" * 200 + b'"')
    s.to_disk()
    client = s.open(controls=[*NOOP, ("connection_buffer_size", "1024")])
    s.stream(client, 0)
    s.stream(client, 1)
    for _ in range(6):
        s.acknowledge(client)
    s.write(*range(40, 48))
    for _ in range(6):
        s.acknowledge(client)
    s.leave(client)


def closed_with_a_full_window(s: ScriptedSession) -> None:
    s.write(*range(12), value=b'"' + b"x" * 200 + b'"')
    s.to_disk()
    ends = ("send_stream_end_on_client_close_stream", "true")
    client = s.open(controls=[*NOOP, ("connection_buffer_size", "1024"), ends])
    s.stream(client)
    s.close_stream(client)
    s.acknowledge(client)
    s.stream(client)
    s.acknowledge(client)
    s.acknowledge(client)
    s.leave(client)


def closed_and_reopened(s: ScriptedSession) -> None:
    s.write(*range(5))
    client = s.open(controls=[*NOOP, ("send_stream_end_on_client_close_stream", "true")])
    s.stream(client)
    s.close_stream(client)
    s.write(1, 2, 9)
    s.stream(client)
    s.write(9)
    s.close_stream(client)
    s.close_stream(client)
    s.to_disk()
    s.stream(client)
    s.leave(client)
    again = s.open()
    again.positions = client.positions
    s.write(5, 6)
    s.stream(again)
    s.stream(again)
    s.leave(again)


def noops(s: ScriptedSession) -> None:
    s.write(1, 2)
    answers = s.open(controls=[("set_noop_interval", "1"), ("enable_noop", "true")])
    s.stream(answers)
    silent = s.open(controls=[("enable_noop", "true"), ("set_noop_interval", "2")])
    silent.answers_noops = False
    s.stream(silent)
    for number in range(7):
        s.wait(1.0)
        if number == 3:
            s.write(2)
    asked = s.open()
    s.ask(asked, m.Empty(), Opcode.DCP_NOOP)
    s.wait(1.0)
    s.leave(answers)


def bounded_streams(s: ScriptedSession) -> None:
    s.write(*range(6))
    s.write(1, 2)
    for from_disk in (True, False):
        for end, flags in (
            (3, 0),
            (8, 0),
            (5, StreamFlag.DISK_ONLY),
            (END_OF_TIME, StreamFlag.TO_LATEST),
            (END_OF_TIME, StreamFlag.DISK_ONLY),
        ):
            if from_disk:
                s.to_disk()
            client = s.open()
            s.stream(client, end=end, flags=flags)
            s.leave(client)
        s.write(9)
    client = s.open()
    s.stream(client, end=14)
    s.write(10)
    s.write(11, 12, 13, 14, 15)
    s.leave(client)


def controls_in_another_order(s: ScriptedSession) -> None:
    s.write(1, 2, 3)
    s.delete(2)
    controls = [
        ("set_priority", "high"),
        ("supports_cursor_dropping_vulcan", "true"),
        ("enable_expiry_opcode", "true"),
        ("set_noop_interval", "1"),
        ("nonsense", "true"),
        ("set_noop_interval", "x"),
        ("connection_buffer_size", "-1"),
        ("force_value_compression", "true"),
        ("enable_noop", "yes"),
        ("enable_noop", "true"),
    ]
    client = s.open(flags=OpenFlag.INCLUDE_DELETE_TIMES, controls=controls)
    s.stream(client)
    s.leave(client)
    few = s.open(features=(HelloFeature.SELECT_BUCKET, HelloFeature.XERROR), controls=[])
    s.stream(few)
    s.leave(few)
    no_noop = s.open(COLLECTIONS, controls=[])
    s.stream(no_noop)
    s.control(no_noop, "enable_noop", "true")
    s.stream(no_noop)
    s.leave(no_noop)


def rollbacks(s: ScriptedSession) -> None:
    s.write(*range(10))
    old = s.cluster.failover_log(0).entries[0].vb_uuid
    watched = s.open()
    s.stream(watched)
    s.leave(watched)
    failover.crash(s.cluster.bucket, 0, 3)
    s.write(20, 21, 22, 23)
    s.delete(20)
    new = s.cluster.failover_log(0).entries[0].vb_uuid
    for vb_uuid in (old, new, 0, 12345):
        for start, snapshot in (
            (0, (0, 0)),
            (5, (5, 5)),
            (7, (7, 7)),
            (8, (8, 8)),
            (6, (3, 9)),
            (9, (7, 12)),
            (12, (12, 12)),
            (30, (30, 30)),
        ):
            client = s.open()
            s.resume(client, start, snapshot, vb_uuid)
            s.leave(client)
    strict = s.open()
    s.resume(strict, 0, (0, 0), 12345, flags=StreamFlag.STRICT_VBUUID)
    s.resume(strict, 9, (10, 12))
    s.resume(strict, 5, end=4)
    asks = s.open()
    s.ask(asks, m.Empty(), Opcode.DCP_GET_FAILOVER_LOG)
    s.leave(strict, asks)


def a_stalled_reader(s: ScriptedSession) -> None:
    s.write(1, 2, 3)
    controls = [*NOOP, ("connection_buffer_size", "600"), ("supports_cursor_dropping", "true")]
    stalled = s.open(controls=controls)
    s.stream(stalled)
    quick = s.open()
    s.stream(quick)
    for number in range(12):
        s.write(number % 5, value=b'"' + b"z" * 150 + b'"')
    s.acknowledge(stalled)
    s.write(4, 4, 4, 2)
    for _ in range(6):
        s.acknowledge(stalled)
    s.leave(stalled, quick)


def errors(s: ScriptedSession) -> None:
    early = s.r.connect()
    s.ask(early, m.DcpOpen(b"early", 1), Opcode.DCP_OPEN)
    s.wait(0.2)
    client = s.log_in()
    s.ask(client, m.SelectBucket(b"nowhere"), Opcode.SELECT_BUCKET)
    s.ask(client, m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0), Opcode.DCP_STREAM_REQ)
    s.ask(client, m.DcpOpen(b"x" * 201, 1), Opcode.DCP_OPEN)
    s.ask(client, m.DcpOpen(b"", 1), Opcode.DCP_OPEN)
    s.ask(client, m.DcpOpen(b"named", 1), Opcode.DCP_OPEN)
    s.ask(client, m.DcpControl(b"enable_noop", b"true"), Opcode.DCP_CONTROL)
    s.close_stream(client)
    s.ask(client, m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0), Opcode.DCP_STREAM_REQ, vbucket=99)
    s.ask(client, m.StreamRequest(0x800000, 0, END_OF_TIME, 0, 0, 0), Opcode.DCP_STREAM_REQ)
    s.resume(client, 5, (6, 7))
    s.stream(client)
    s.stream(client)
    s.write(1)
    again = s.log_in()
    s.ask(again, m.DcpOpen(b"named", 1), Opcode.DCP_OPEN)
    s.wait(0.5)
    s.leave(again)


def many_bursts_on_many_vbuckets(s: ScriptedSession) -> None:
    client = s.open(mechanism="SCRAM-SHA256")
    for vbucket in range(8):
        s.stream(client, vbucket)
    for burst in range(10):
        s.write(*(number % 9 for number in range(burst, burst + 12)))
    s.delete(1, 2)
    s.to_disk()
    other = s.open()
    for vbucket in range(8):
        s.stream(other, vbucket, flags=StreamFlag.TO_LATEST)
    s.leave(client, other)


def documents_with_values_of_many_sizes(s: ScriptedSession) -> None:
    client = s.open(controls=[*NOOP, ("connection_buffer_size", "100000")])
    s.stream(client)
    for size in (0, 1, 100, 10_000, 300_000):
        s.write(size % 7, value=b"v" * size)
        s.acknowledge(client)
    s.to_disk()
    second = s.open((HelloFeature.SELECT_BUCKET, HelloFeature.XERROR))
    s.stream(second)
    s.leave(client, second)


def failover_logs_in_between(s: ScriptedSession) -> None:
    s.write(*range(5))
    client = s.open()
    s.ask(client, m.Empty(), Opcode.DCP_GET_FAILOVER_LOG)
    s.stream(client)
    s.write(2)
    s.ask(client, m.Empty(), Opcode.DCP_GET_FAILOVER_LOG)
    s.write(3)
    failover.crash(s.cluster.bucket, 0, 1)
    s.wait(0.5)
    s.ask(client, m.Empty(), Opcode.DCP_GET_FAILOVER_LOG)
    s.stream(client)
    s.stream(client)
    s.write(8)
    other = s.log_in()
    s.ask(other, m.Empty(), Opcode.GET_FAILOVER_LOG)
    s.ask(other, m.Empty(), Opcode.GET_FAILOVER_LOG, vbucket=7)
    s.ask(other, m.GetAllVbSeqnos(), Opcode.GET_ALL_VB_SEQNOS)
    s.leave(client, other)
