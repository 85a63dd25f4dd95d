"""Flow control, counted in bytes; the steps are those recorded from a real server."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.server.model.send_window import UNLIMITED, SendWindow
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.vocabulary import Opcode, Status
from tests.producer.raw_client import PLAIN_FEATURES, RawClient

Connect = Callable[[ProducerCluster], RawClient]
MARKER = 44
MUTATION = 260


def _fill(cluster: ProducerCluster, count: int) -> None:
    """Store documents whose mutations are 260 bytes on the wire."""
    with cluster.batch():
        for number in range(count):
            cluster.set(b"doc%02d" % number, b"x" * 200)


def _sizes(dcp: RawClient, count: int) -> list[int]:
    return [24 + dcp.stream_frame().body_bytes for _ in range(count)]


def _unacked(cluster: ProducerCluster) -> int:
    return cluster.counters().connections[0, "raw"].outstanding_bytes


def test_a_window_of_1000_bytes_as_recorded(cluster: ProducerCluster, connect: Connect) -> None:
    _fill(cluster, 20)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(window=1000)
    dcp.request_stream(0)
    for ack, sizes, unacked in (
        (0, [MARKER, MUTATION, MUTATION, MUTATION, MUTATION], 1084),
        (1, [], 1083),
        (84, [MUTATION], 1259),
        (500, [MUTATION], 1019),
        (1019, [MUTATION] * 4, 1040),
        (1_000_000, [MUTATION] * 4, 1040),
    ):
        dcp.ack(ack)
        assert _sizes(dcp, len(sizes)) == sizes
        assert dcp.is_quiet()
        assert _unacked(cluster) == unacked


def test_a_message_larger_than_the_window_passes(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.set(b"large", b"x" * (20 * 1024 * 1024))
    cluster.set(b"small", b"y")
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(window=1024 * 1024)
    dcp.request_stream(0)
    large = _sizes(dcp, 2)[1]
    assert dcp.is_quiet()
    assert _unacked(cluster) == MARKER + large
    dcp.ack(large)
    assert _sizes(dcp, 1) == [55 + 6]


def test_stream_end_waits_for_the_window_and_answers_do_not(
    cluster: ProducerCluster, connect: Connect
) -> None:
    _fill(cluster, 3)
    dcp = connect(cluster).log_in(PLAIN_FEATURES)
    dcp.open_dcp(window=300, send_stream_end_on_client_close_stream="true")
    dcp.request_stream(0)
    assert _sizes(dcp, 2) == [MARKER, MUTATION]
    assert dcp.call(m.Empty(), Opcode.DCP_CLOSE_STREAM).status == Status.SUCCESS
    assert dcp.is_quiet()
    dcp.ack(304)
    assert dcp.message() == m.StreamEnd(1)
    assert _unacked(cluster) == 28


def test_changing_the_window_takes_effect_at_once(
    cluster: ProducerCluster, connect: Connect
) -> None:
    _fill(cluster, 20)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(window=300)
    dcp.request_stream(0)
    assert _sizes(dcp, 2) == [MARKER, MUTATION]
    dcp.ok(m.DcpControl(b"connection_buffer_size", b"2000"), Opcode.DCP_CONTROL)
    assert _sizes(dcp, 7) == [MUTATION] * 7
    assert dcp.is_quiet()
    assert _unacked(cluster) == 304 + 7 * MUTATION
    dcp.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
    assert _sizes(dcp, 12) == [MUTATION] * 12


def test_the_window_is_shared_by_all_streams(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=4)
    _fill(cluster, 100)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(window=5000)
    for vbucket in range(4):
        dcp.request_stream(vbucket)
    seen, peak_allowed = 0, 5000 + MUTATION
    while seen < 100:
        frame = dcp.stream_frame()
        seen += isinstance(decode(frame), m.Mutation)
        assert _unacked(cluster) < peak_allowed
        dcp.ack(24 + frame.body_bytes)
    counters = cluster.counters()
    assert sum(counters.items_sent.values()) == 100
    assert 5000 <= counters.peak_unacked_bytes < peak_allowed


def test_statistics_tell_the_unacked_bytes(cluster: ProducerCluster, connect: Connect) -> None:
    _fill(cluster, 20)
    dcp = connect(cluster).log_in(PLAIN_FEATURES).open_dcp(window=1000)
    dcp.request_stream(0)
    _sizes(dcp, 5)
    statistics = connect(cluster).log_in(PLAIN_FEATURES).statistics("dcp")
    assert statistics["eq_dcpq:raw:unacked_bytes"] == "1084"
    assert statistics["eq_dcpq:raw:max_buffer_bytes"] == "1000"


@given(st.integers(1, 2000), st.lists(st.one_of(st.integers(1, 500), st.integers(-800, -1))))
def test_outstanding_is_what_was_charged_less_what_was_acked(window: int, steps: list[int]) -> None:
    flow, expected = SendWindow(), 0
    assert flow.room_bytes == UNLIMITED
    flow.set_window(window)
    for step in steps:
        if step > 0:
            flow.charge(step)
        else:
            flow.acknowledge(-step)
        expected = max(0, expected + step)
        assert flow.outstanding_bytes == expected
        assert (flow.room_bytes > 0) == (expected < window)


def test_acks_beyond_what_is_outstanding_are_counted() -> None:
    flow = SendWindow()
    assert flow.acknowledge(5) == 0, "without a window an ack has no meaning"
    flow.set_window(1000)
    flow.charge(100)
    assert [flow.acknowledge(40), flow.acknowledge(100), flow.acknowledge(7)] == [0, 40, 7]
    assert (flow.outstanding_bytes, flow.acked_bytes, flow.over_acked_bytes) == (0, 147, 47)


def test_a_consumer_that_acknowledges_nothing_is_stuck_after_the_limit() -> None:
    flow = SendWindow()
    flow.set_window(100)
    flow.charge(100)
    looks = [flow.is_stuck(720, now) for now in (10, 729, 730)]
    flow.acknowledge(1)
    assert not flow.is_full
    looks.append(flow.is_stuck(720, 800))
    flow.charge(1)
    looks += [flow.is_stuck(720, now) for now in (900, 1619, 1620)]
    assert looks == [False, False, True, False, False, False, True]


def test_who_turns_flow_control_off_and_on_is_looked_at_anew() -> None:
    flow = SendWindow()
    looks = []
    for first in (0, 10_000):
        flow.set_window(100)
        flow.charge(100)
        looks += [flow.is_stuck(720, now) for now in (first, first + 719, first + 720)]
        flow.set_window(0)
    assert looks == [False, False, True] * 2


def test_a_larger_window_is_no_acknowledgement() -> None:
    """As in kv_engine: its rule knows what was acknowledged, not since when the window is full."""
    flow = SendWindow()
    flow.set_window(100)
    flow.charge(100)
    assert not flow.is_stuck(720, 0)
    flow.set_window(200)
    assert not flow.is_stuck(720, 9_000)  # there is room
    flow.charge(100)
    assert flow.is_stuck(720, 10_000)
