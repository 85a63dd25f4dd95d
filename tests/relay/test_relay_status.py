"""``dcplake status`` of a lake whose source is a relay, is none, or is not there."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic

import pytest

from dcp.cli.displays.source_report import SourceReport, ask_source
from dcp.cli.main import main
from dcp.lake.config.settings import Settings
from dcp.lake.config.settings_load import load_settings
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.relay_figures import GroupFigures, RelayFigures
from dcp.relay.relay_thread import Relay
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode
from tests.client.drained import USERS, fill, wait_for
from tests.producer.raw_client import RawClient
from tests.producer.tls import CERTIFICATE, TLS_FILES
from tests.relay.lakes import PATIENCE_SECONDS, Lake

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]
((USER, PASSWORD),) = USERS.items()


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)


def source(*seeds: str, **more: object) -> Settings:
    settings = {"seeds": list(seeds), "username": USER, **more}
    return load_settings(None, {}, {f"source.{name}": value for name, value in settings.items()})


def test_it_says_which_group_lacks_somebody(
    make_cluster: MakeCluster, make_relay: MakeRelay
) -> None:
    cluster = make_cluster(vbuckets=4)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,g:/2,t:60s"))
    report = ask_source(source(relay.seeds[0]))
    assert (report.node, report.trouble) == (relay.seeds[0], "")
    assert report.relay is not None and report.relay.groups[0].receivers == 0
    head, group, *_ = report.lines()
    assert head.startswith(f"relay {relay.seeds[0]}: consumers 0, streams 0; RSS ")
    assert group == "  vbuckets 0-3: 0 of 2 receivers, no stream until they are there"


def test_it_says_who_gates_and_what_the_cluster_waits_for(
    make_cluster: MakeCluster, make_relay: MakeRelay
) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 40)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=20_000)
    with closing(Lake(relay.seeds[0], 2, "slow", window_bytes=5_000)) as slow:
        slow.run_to(cluster)
        fill(cluster, 400, 500)

        def names_it() -> bool:
            slow.take_one(0.05, release=False)
            lines = ask_source(source(relay.seeds[0])).lines()
            text = [line for line in lines if "wait for consumer slow" in line]
            upstream = [line for line in lines if f"upstream {cluster.seeds[0]}" in line]
            return bool(text) and "in use, waits for consumer slow" in upstream[0]

        wait_for("it is named", names_it, PATIENCE_SECONDS)


def test_names_of_consumers_move_no_cursor() -> None:
    told = RelayFigures(groups=(GroupFigures("0-1", waits_for="a\x1b[2J\n\u00e9"),))
    assert SourceReport("node:1", told).lines() == [
        "relay node:1: consumers 0, streams 0; RSS not known",
        "  vbuckets 0-1: 0 B wait for consumer a\\x1b[2J\\n\u00e9",
    ]


def test_a_name_forges_no_line_of_the_status_nor_of_the_log(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It fills its window and acknowledges nothing, so that all speak of it."""
    cluster = make_cluster(vbuckets=1)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=20_000)
    shown = r"e\x1b[2J\x0avil"
    with RawClient(relay.seeds[0]) as client:
        client.log_in(user=USER, password=PASSWORD).open_dcp(b"e\x1b[2J\nvil", window=2000)
        client.call(m.DcpControl(b"connection_buffer_size", b"no"), Opcode.DCP_CONTROL)
        (line,) = [line for line in caplog.messages if "a window is refused" in line]
        assert line.startswith(f"eq_dcpq:{shown}: ") and line.isprintable()
        wait_for("a stream", lambda: not client.request_stream(0).status, PATIENCE_SECONDS)
        fill(cluster, 200, 500)

        def is_named() -> bool:
            lines = ask_source(source(relay.seeds[0])).lines()
            assert all(line.isprintable() for line in lines)
            return any(f"wait for consumer {shown}" in line for line in lines)

        wait_for("it is named", is_named, PATIENCE_SECONDS)
        assert main(["top", "--relay", relay.http_seeds[0], "--user", USER]) == 0
        text = capsys.readouterr().out
        assert shown in text
        assert "\x1b" not in text
        assert "\nvil" not in text


def test_a_cluster_has_nothing_to_say(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    report = ask_source(source(cluster.seeds[0]))
    assert report == SourceReport(cluster.seeds[0])
    assert report.lines() == []


@contextmanager
def silent_node() -> Iterator[str]:
    """A port where connections are taken, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_source_that_is_silent_or_gone_holds_nothing_up(make_cluster: MakeCluster) -> None:
    with silent_node() as silent:
        began = monotonic()
        (line,) = ask_source(source(silent), deadline_seconds=0.5).lines()
        assert monotonic() - began < PATIENCE_SECONDS
        assert line.startswith("source: not known what it waits for: ") and silent in line
        cluster = make_cluster()
        assert ask_source(source(silent, cluster.seeds[0])).node == cluster.seeds[0]
    (line,) = ask_source(source(silent)).lines()
    assert "cannot connect" in line


def test_no_source_is_named_and_no_password_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_source(Settings()).lines() == []
    monkeypatch.delenv("DCPLAKE_PASSWORD")
    (line,) = ask_source(source("127.0.0.1:1")).lines()
    assert "DCPLAKE_PASSWORD is not set" in line


def test_certificates_and_mechanisms_are_those_of_the_lake(
    make_cluster: MakeCluster, make_relay: MakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=2)
    relay = make_relay(cluster, listen_tls=TLS_FILES)
    (encrypted,) = relay.tls_seeds
    assert ask_source(source(encrypted, tls=True, tls_ca_file=CERTIFICATE)).relay
    (line,) = ask_source(source(encrypted, tls=True)).lines()
    assert "CERTIFICATE_VERIFY_FAILED" in line
    monkeypatch.setattr("dcp.server.commands.setup_commands.MECHANISMS", b"PLAIN")
    (line,) = ask_source(source(relay.seeds[0])).lines()
    assert "found PLAIN offered" in line and PASSWORD not in line
    assert ask_source(source(relay.seeds[0], allow_plain=True)).relay
    assert ask_source(source(encrypted, tls=True, tls_ca_file=CERTIFICATE)).relay


def test_the_command_shows_it(
    make_cluster: MakeCluster,
    make_relay: MakeRelay,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = make_cluster(vbuckets=4)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,g:/2,t:60s"))
    config = tmp_path / "dcplake.toml"
    config.write_text(f'[source]\nseeds = ["{relay.seeds[0]}"]\nusername = "{USER}"\n')
    options = ["--config", str(config), "--lake", str(tmp_path / "lake")]
    assert main(["run", "--once", "--set", f"source.seeds={cluster.seeds[0]}", *options]) == 0
    words = ["status", *options]
    assert main(words) == 0
    assert "\n  vbuckets 0-3: 0 of 2 receivers, no stream" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["round"] == 0 and told["tasks"] == []
    assert told["source"]["relay"]["groups"][0]["required"] == 2
    assert (told["source"]["node"], told["source"]["trouble"]) == (relay.seeds[0], "")
    relay.stop()
    assert main(words) == 0
    assert "cannot connect" in capsys.readouterr().out


def test_the_doctor_of_a_lake_is_in_the_lakes_group(
    make_cluster: MakeCluster, make_relay: MakeRelay, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody else is in it, so without the tag there would be no stream."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 10)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("tagged,g:7/1,t:60s"))
    settings = (f"seeds={relay.seeds[0]}", f"username={USER}", "receiver_group_tag=7")
    words = [word for each in settings for word in ("--set", f"source.{each}")]
    assert main(["doctor", "--json", *words]) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["state"] for each in steps] == ["ok"] * 12
