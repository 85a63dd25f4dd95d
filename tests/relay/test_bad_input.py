"""Bad input to a relay, on its command line and by its consumers: refused in words.

What is wrong with numbers and names of single messages is tested where they are read
(``tests/protocol/test_flow_spec.py``, ``tests/producer/commands/test_handshake.py``,
``tests/producer/streams/test_stream_windows.py``); here a relay stands behind each of them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.relay.thread import Relay
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.client.drained import USERS, fill
from tests.producer.raw_client import PLAIN_FEATURES, RawClient
from tests.relay.following import wait_until_level
from tests.relay.relaying import relaying

USAGE = 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--fc", ""], "--fc: found '', expected a value"),
        (["--fc", "fastest"], "found 'fastest', expected a strategy: max, min or tagged"),
        (["--fc", "MAX"], "found 'MAX', expected a strategy"),
        (["--fc", "max,t:5s"], "at character 5: found 't:5s', expected an option of max"),
        (["--fc", "min,t:-1s"], "at character 7: found '-1s', expected a duration"),
        (["--fc", "min,t:5m"], "found '5m', expected a duration"),
        (["--fc", "tagged,g:7/-1"], "found '-1', expected a group size from 0"),
        (["--fc", "tagged,g:7/4294967296"], "found '4294967296', expected a group size"),
        (["--fc", "tagged,g:9223372036854775808"], "expected a group tag: a decimal number"),
        (
            ["--fc", "tagged,g:-9223372036854775809"],
            "found '-9223372036854775809', expected a group",
        ),
        (["--fc", "tagged,g:7/"], "at character 12: found '', expected a group size"),
        (["--fc", "tagged,g:"], "at character 10: found '', expected a group"),
        (["--fc", "min,g:/2147483648"], "found '2147483648', expected a group size from 0"),
        (["--fc", "min,rrwm:2147483648"], "found '2147483648', expected a number from 1"),
        (["--fc", "min,rrwm:0"], "found '0', expected a number from 1"),
        (["--fc", "min,t:"], "at character 7: found '', expected a duration"),
        (["--fc", "min,t:9223372036854775808"], "found '9223372036854775808', expected a duration"),
        (["--fc", "min,hold:5s"], "at character 5: found 'hold:5s', expected an option of min"),
        (["--fc", "min,,t:5s"], "at character 5: found '', expected an option"),
        (["--fc", ","], "at character 1: found '', expected a strategy"),
        (["--fc", " min"], "at character 1: found ' min', expected a strategy"),
        (["--fc", "min "], "at character 1: found 'min ', expected a strategy"),
        (["--fc", "min, t:5s"], "at character 5: found ' t:5s', expected an option"),
        (["--fc", "min,t:5s "], "at character 7: found '5s ', expected a duration"),
        (["--fc", "min;t:5s"], "at character 1: found 'min;t:5s', expected a strategy"),
        (["--window-bytes", "0"], "--window-bytes: found 0, expected 1 to 4294967295"),
        (["--window-bytes", "4294967296"], "--window-bytes: found 4294967296"),
        (["--window-bytes", "-1"], "--window-bytes: found '-1', expected a number of bytes"),
        (["--window-bytes", "1e6"], "--window-bytes: found '1e6'"),
        (["--window-bytes", "9" * 19], "expected a number of bytes, up to 18 digits"),
        (["--memory-quota", "0"], "--memory-quota: found 0, expected 1 or more"),
        (["--memory-quota", "lots"], "--memory-quota: found 'lots'"),
        (["--hold", "-1"], "--hold: found '-1', expected seconds, 0 or more"),
        (["--hold", "inf"], "--hold: found 'inf'"),
        (["--hold", "1e3"], "--hold: found '1e3'"),
        (["--http-port", "65536"], "--http-port: found 65536, expected 0 to 65535"),
        (["--https-port", "18091"], "found some, expected none without a certificate"),
        (
            ["--listen-tls-port", "1"],
            "relay tls_port, https_port (--listen-tls-port, --https-port): found some, expected "
            "none without a certificate (--listen-tls-cert)",
        ),
        (["--listen-tls-client-ca", "ca"], "relay tls.cert_file (--listen-tls-cert): found no"),
        (["--bucket", "a b"], "relay bucket (--bucket): found name 'a b', expected 1 to 100"),
        (["--listen", "h:7", "--http-port", "7"], "(--listen, --http-port): found 7 twice"),
        (["--listen", "127.0.0.1:65536"], "--listen: found '127.0.0.1:65536'"),
        (["--listen", "[]:11210"], "--listen: found '[]:11210'"),
        (["--upstream", ""], "--upstream: found '', expected a value"),
        (["--upstream", "a:b:c"], "relay upstream (--upstream): node address 'a:b:c'"),
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
    code = main(words)
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
    assert "none of 1 seeds answers" in capsys.readouterr().err


def test_what_aeron_takes_is_taken(
    make_cluster: Callable[..., ProducerCluster], tmp_path: Path
) -> None:
    """By the real command; what else a parameter may say: ``tests/protocol/test_flow_spec.py``."""
    ((user, password),) = USERS.items()
    cluster, fc = make_cluster(vbuckets=1), ("--fc", "tagged,g:7,t:1S,g:/2,")
    with relaying(cluster, tmp_path, *fc) as relay, RawClient(relay.seed, 60.0) as client:
        found = client.log_in(PLAIN_FEATURES, user, password).statistics("relay")
    assert json.loads(found["relay"])["strategy"] == "tagged,g:7/2,t:1s,rrwm:4"


def test_the_real_command_refuses(tmp_path: Path) -> None:
    """Exit code and one line, no traceback; nothing on the line that consumers wait for."""
    words = ["relay", "--upstream", "localhost:1", "--data", str(tmp_path / "relay")]
    ended = subprocess.run(
        [sys.executable, "-m", "dcp.cli.main", *words, "--fc", "tagged,g:7/x,t:5s"],
        env={**os.environ, "DCPLAKE_PASSWORD": "p"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (USAGE, "")
    (line,) = ended.stderr.splitlines()
    assert "fc=tagged,g:7/x,t:5s: at character 12: found 'x', expected a group size" in line


@pytest.mark.parametrize(
    "name",
    [
        b"lake#gtag=",
        b"lake#gtag=x",
        b"lake#gtag=--7",
        b"lake#gtag=0x3E9",
        b"lake#gtag=1e3",
        b"lake#gtag=7.5",
        b"lake#gtag=+7",
        b"lake#gtag=1001abc",
        b"lake#gtag=9223372036854775808",
        b"lake#gtag=-9223372036854775809",
        b"lake#gtag=12345678901234567890",
        b"lake#gtag=7#gtag=8",
        b"lake#gtag=7#gtag=",
    ],
)
def test_a_name_with_a_tag_that_is_none(
    make_cluster: Callable[..., ProducerCluster], make_relay: Callable[..., Relay], name: bytes
) -> None:
    """Else its consumer would belong to no group, and not know it; the connection stays."""
    relay = make_relay(make_cluster(vbuckets=1))
    with RawClient(relay.seeds[0]) as client:
        client.log_in()
        refused = client.call(m.DcpOpen(name, 1), Opcode.DCP_OPEN)
        assert refused.status == Status.EINVAL
        assert b"#gtag=" in refused.value
        client.open_dcp(b"lake#gtag=-9223372036854775808:connection-1")
        assert client.request_stream(0).status == Status.SUCCESS


def test_what_is_told_of_a_tag_that_is_none(
    make_cluster: Callable[..., ProducerCluster], make_relay: Callable[..., Relay]
) -> None:
    relay = make_relay(make_cluster(vbuckets=1))
    with RawClient(relay.seeds[0]) as client:
        client.log_in().open_dcp()
        client.send(_control("receiver_group_tag", b"1e3"))
        said = client.answer().value.decode()
    assert "receiver_group_tag: found '1e3', expected a decimal number of 64 bits" in said


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
