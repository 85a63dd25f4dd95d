"""The window's account in the reader's credits follows the window through resizes."""

from dcp.client.reader_credits import ReaderCredits
from dcp.client.settings import ConnectionSettings
from dcp.protocol.flow_control import FlowSettings, ReceiveWindow


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
