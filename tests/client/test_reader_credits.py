"""A connection's accounts: they follow the window through resizes, and say when to read."""

from dcp.client.addresses import NodeAddress
from dcp.client.reader_credits import ReaderCredits
from dcp.client.settings import ConnectionSettings
from dcp.protocol.receive_window import FlowSettings, ReceiveWindow
from tests.protocol.scripted import new_connection


def test_the_account_follows_a_window_that_is_resized_switched_off_and_on() -> None:
    credits = ReaderCredits(ConnectionSettings("default", window_bytes=1000))
    window = ReceiveWindow(FlowSettings(1000), 0.0).charge(600)
    credits.follow(window, 1000, 1.0)
    account = credits.window.account
    assert (account.in_use, account.is_open) == (600, True)
    window = window.resized(500)
    credits.follow(window, 1000, 2.0)
    assert (account.in_use, account.is_open, account.high) == (600, False, 500)
    window = window.resized(700)
    credits.follow(window, 1000, 5.0)
    assert (account.is_open, account.closed_seconds(9.0)) == (True, 3.0)
    window = window.resized(0).charge(100)
    credits.follow(window, 1000, 6.0)
    assert account.in_use == 0
    window = window.resized(800)
    credits.follow(window, 1000, 7.0)
    assert account.in_use == 100, "what was charged meanwhile counts when it is on again"
    window = window.release(window.held_bytes + window.forgotten_held_bytes)
    window, _ = window.acknowledge(99.0)
    credits.follow(window, 1000, 99.0)
    assert account.in_use == 0
    credits.settle(100.0)
    assert account.second_releases == 0


def test_a_look_tells_what_the_node_counts_and_what_is_still_held() -> None:
    machine = new_connection()
    credits = ReaderCredits(ConnectionSettings("default", window_bytes=1000))
    window = ReceiveWindow(FlowSettings(1000), 0.0).charge(600).release(100)
    for resized, unacked_bytes, held_bytes in [
        (window, 600, 500),
        (window.resized(0), 0, 500),
        (window.resized(0).resized(700).charge(30), 30, 530),
    ]:
        credits.follow(resized, 1000, 1.0)
        machine._state.window = resized
        look = credits.look(NodeAddress("n", 1), "name", machine, None, 1.0)
        assert (look.unacked_bytes, look.held_bytes) == (unacked_bytes, held_bytes)


def test_overflow_is_what_a_message_went_beyond_the_window_of_its_time() -> None:
    credits = ReaderCredits(ConnectionSettings("default", window_bytes=1000))
    window = ReceiveWindow(FlowSettings(1000), 0.0).charge(900).charge(150)
    credits.follow(window, 1000, 1.0)
    assert credits.overflow_bytes == 50
    window = window.resized(400)
    for most_bytes in (1000, 400, 400):  # the CONTROL is answered meanwhile
        credits.follow(window, most_bytes, 2.0)
    assert credits.overflow_bytes == 50, "the window shrank: no message went beyond it"
    window, _ = window.release(1000).acknowledge(9.0)
    credits.follow(window, 400, 9.0)
    window = window.charge(420)
    credits.follow(window, 400, 9.0)
    assert credits.overflow_bytes == 70
    window = window.resized(5000)
    credits.follow(window, 5000, 10.0)
    assert credits.overflow_bytes == 70, "and it stays when the window grows"


def test_a_message_that_was_sent_before_the_smaller_window_was_known_is_none_beyond_it() -> None:
    credits = ReaderCredits(ConnectionSettings("default", window_bytes=1000))
    window = ReceiveWindow(FlowSettings(1000), 0.0).charge(900)
    credits.follow(window, 1000, 1.0)
    credits.follow(window.resized(400).charge(90), 400, 2.0)  # with the answer behind it
    assert credits.overflow_bytes == 0


def test_a_frame_of_any_size_passes_a_small_account_of_the_socket() -> None:
    credits = ReaderCredits(ConnectionSettings("default", read_buffer_bytes=100))
    socket, frame = credits.socket.account, credits.frame.account
    received = 0
    for part in [100] * 50 + [7]:
        assert credits.readable_bytes == 100
        credits.socket.take(part, 1.0)
        assert credits.readable_bytes == (0 if part == 100 else 93), "not before that is in place"
        received += part
        credits.decoded(received, 1.0)
        assert (socket.in_use, frame.in_use) == (0, received)
    credits.decoded(0, 2.0)
    assert (socket.peak, frame.peak, frame.in_use) == (100, 5007, 0)


def test_a_full_hand_over_stops_the_reading_until_three_quarters_of_it() -> None:
    settings = ConnectionSettings("default", window_bytes=1000, max_frame_bytes=200)
    credits = ReaderCredits(settings)
    credits.handover.take(1199, 1.0)
    assert credits.readable_bytes > 0
    credits.handover.take(1, 1.0)
    assert credits.readable_bytes == 0
    credits.handover.release(299, 2.0)
    assert credits.readable_bytes == 0
    credits.handover.release(1, 3.0)
    assert credits.readable_bytes > 0
    credits.follow(ReceiveWindow(FlowSettings(3000), 0.0).charge(900), 3000, 4.0)
    assert credits.handover.account.high == 3200, "its marks follow the window"
