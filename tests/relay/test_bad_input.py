"""What a relay is told wrongly, on its command line and by its consumers: refused in words.

What is wrong with numbers and names of single messages is tested where they are read
(``tests/protocol/test_flow_spec.py``, ``tests/producer/test_handshake.py``,
``tests/producer/test_stream_windows.py``); here a relay stands behind each of them.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.relay.relay import Relay
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.client.drained import fill
from tests.producer.raw_client import PLAIN_FEATURES, RawClient
from tests.relay.following import wait_until_level

USAGE = 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--fc", ""], "fc=: at character 1: found '', expected a strategy"),
        (["--fc", "fastest"], "found 'fastest', expected a strategy: max, min or tagged"),
        (["--fc", "MAX"], "found 'MAX', expected a strategy"),
        (["--fc", "max,t:5s"], "at character 5: found 't:5s', expected an option of max"),
        (["--fc", "min,t:-1s"], "at character 7: found '-1s', expected a duration"),
        (["--fc", "min,t:5m"], "found '5m', expected a duration"),
        (["--fc", "tagged,g:7/-1"], "found '-1', expected a group size from 0"),
        (["--fc", "tagged,g:7/4294967296"], "found '4294967296', expected a group size"),
        (["--fc", "tagged,g:9223372036854775808"], "expected a group tag: a decimal number"),
        (["--window-bytes", "0"], "relay window: found 0 bytes, expected 1 to 4294967295"),
        (["--window-bytes", "4294967296"], "relay window: found 4294967296 bytes"),
        (["--window-bytes", "-1"], "--window-bytes: found '-1', expected a number of bytes"),
        (["--window-bytes", "1e6"], "--window-bytes: found '1e6'"),
        (["--window-bytes", "9" * 19], "expected a number of bytes, up to 18 digits"),
        (["--memory-quota", "0"], "checkpoint quota: found 0 bytes, expected 1 or more"),
        (["--memory-quota", "lots"], "--memory-quota: found 'lots'"),
        (["--hold", "-1"], "--hold: found '-1', expected seconds, 0 or more"),
        (["--hold", "inf"], "--hold: found 'inf'"),
        (["--hold", "1e3"], "--hold: found '1e3'"),
        (["--http-port", "65536"], "found 65536, expected 0 to 65535"),
        (["--listen", "127.0.0.1:65536"], "--listen: found '127.0.0.1:65536'"),
        (["--upstream", ""], "node address ''"),
        (["--upstream", "a:65536"], "node address 'a:65536'"),
    ],
)
def test_options(
    options: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is asked of the cluster, or made on disk."""
    monkeypatch.setenv("DCPLAKE_PASSWORD", "p")
    folder = tmp_path / "relay"
    words = ["relay", "--upstream", "localhost:1", "--data", str(folder), *options]
    try:
        code: object = main(words)
    except SystemExit as error:
        code = error.code
    said = " ".join(capsys.readouterr().err.split())
    assert (code, expected in said) == (USAGE, True), said
    assert not folder.exists()


def test_sizes_beyond_32_bits_where_they_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quota is no window: the relay begins, and finds no cluster."""
    monkeypatch.setenv("DCPLAKE_PASSWORD", "p")
    words = ["relay", "--upstream", "localhost:1", "--data", str(tmp_path / "relay")]
    assert main([*words, "--memory-quota", "8589934592", "--window-bytes", "4294967295"]) == 4
    assert "no node answers" in capsys.readouterr().err


def _control(name: str, value: bytes) -> Frame:
    return encode(m.DcpControl(name.encode(), value), Opcode.DCP_CONTROL)


def _ack(opaque: int, extras: bytes) -> Frame:
    return Frame(Magic.REQUEST, Opcode.DCP_BUFFER_ACK, extras=extras, opaque=opaque)


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (_control("connection_buffer_size", b"4294967296"), Status.EINVAL),
        (_control("connection_buffer_size", b"-1"), Status.EINVAL),
        (_control("connection_buffer_size", b"\xff"), Status.EINVAL),
        (_control("stream_buffer_size", b"4294967296"), Status.EINVAL),
        (_control("stream_buffer_size", b"1e3"), Status.EINVAL),
        (_control("set_noop_interval", b"-1"), Status.EINVAL),
        (_control("window_policy", b"greedy"), Status.EINVAL),
        (_control("receiver_group_tag", b"18446744073709551616"), Status.EINVAL),
        (_ack(0x0BAD, (100).to_bytes(4)), Status.KEY_ENOENT),
        (_ack(0x0BAD, (100).to_bytes(8)), Status.EINVAL),
        (_ack(0, b""), Status.EINVAL),
    ],
)
def test_a_consumer_goes_on_after_what_was_refused(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
    wrong: Frame,
    status: Status,
) -> None:
    """Nothing has changed by it: window, stream and the place in the group."""
    cluster = make_cluster(vbuckets=1)
    relay = make_relay(cluster)
    with RawClient(relay.seeds[0]) as client:
        client.log_in(PLAIN_FEATURES).open_dcp(window=10_000, stream_buffer_size="5000")
        assert client.request_stream(0).status == Status.SUCCESS
        fill(cluster, 40, 200)
        wait_until_level(cluster, relay)
        client.send(wrong)
        answer = client.answer()
        assert (answer.opcode, answer.status) == (wrong.opcode, status)
        (consumer,) = relay.bucket.dcp_connections.values()
        assert consumer.flow.window_bytes == 10_000
        assert consumer.stream_windows.window_bytes == 5_000
        client.ok(m.DcpControl(b"stream_buffer_size", b"0"), Opcode.DCP_CONTROL)
        client.ok(m.DcpControl(b"connection_buffer_size", b"0"), Opcode.DCP_CONTROL)
        found = client.messages_to(40)
        assert sum(isinstance(each, m.Mutation) for each in found) == 40
