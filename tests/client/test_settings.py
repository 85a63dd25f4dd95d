"""Settings refuse what cannot work, and say which value."""

import pytest

from dcp.client.settings import MIB, ConnectionSettings, ConsumerSettings
from dcp.errors import ConfigError
from dcp.tls_settings import TlsSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bucket", ""),
        ("window_bytes", -1),
        ("window_bytes", 2**32),
        ("window_bytes", 1.5),
        ("stream_window_bytes", -1),
        ("stream_window_bytes", 2**32),
        ("stream_window_bytes", True),
        ("ack_fraction", 0),
        ("ack_fraction", 1.0),
        ("ack_seconds", 0),
        ("noop_interval_seconds", -1),
        ("connect_timeout_seconds", "10"),
        ("read_buffer_bytes", 0),
        ("max_frame_bytes", 23),
        ("bootstrap_timeout_seconds", True),
        ("request_timeout_seconds", float("nan")),
    ],
)
def test_a_wrong_value_is_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        ConnectionSettings(**{"bucket": "b", name: value})  # type: ignore[arg-type]


def test_no_flow_control_must_be_allowed() -> None:
    with pytest.raises(ConfigError, match="allow_no_flow_control"):
        ConnectionSettings("b", window_bytes=0)
    chosen = ConnectionSettings("b", window_bytes=0, allow_no_flow_control=True)
    assert chosen.unreleased_limit_bytes(chosen.window_bytes) == chosen.unread_limit_bytes


def test_a_producer_that_keeps_to_the_window_is_never_left_unread() -> None:
    chosen = ConnectionSettings("b", window_bytes=MIB)
    assert chosen.unreleased_limit_bytes(chosen.window_bytes) == MIB + chosen.max_frame_bytes


def test_retry_delays_out_of_order() -> None:
    with pytest.raises(ConfigError, match="retry_first_seconds"):
        ConsumerSettings(ConnectionSettings("b"), retry_first_seconds=3, retry_cap_seconds=2)


def test_a_missing_ca_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no-such-file\.pem"):
        TlsSettings("/no-such-file.pem").client_context()
