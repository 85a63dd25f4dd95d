"""Encrypted on both sides, with a cluster of several nodes: relay, consumers, and ``top``."""

import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import Credentials
from dcp.relay.thread import Relay
from dcp.tls_settings import TlsSettings
from tests.cli.own_process import OwnProcess
from tests.client.drained import USERS, fill, wait_for
from tests.producer.authority import Authority, ShownCertificate
from tests.producer.tls import CERTIFICATE, KEY, READER, TLS_FILES
from tests.relay.following import wait_until_level
from tests.relay.lakes import Lake
from tests.relay.relaying import relaying

MakeCluster = Callable[..., ProducerCluster]
((USER, PASSWORD),) = USERS.items()
TRUST = TlsSettings(CERTIFICATE)
LISTEN = ("--listen-tls-cert", CERTIFICATE, "--listen-tls-key", KEY)


@dataclass(frozen=True)
class Encrypted:
    """A cluster by its encrypted ports."""

    seeds: Sequence[str]


def test_nodes_come_and_go(make_cluster: MakeCluster, make_relay: Callable[..., Relay]) -> None:
    """The map names each node's encrypted port; one node is enough to find the others."""
    cluster = make_cluster(nodes=3, vbuckets=6, tls=TLS_FILES)
    fill(cluster, 60)
    seed = cluster.tls_seeds[1]
    relay = make_relay(cluster, upstream=(seed,), tls=TRUST, listen_tls=TLS_FILES)
    wait_until_level(cluster, relay)
    assert {link.node for link in relay.figures().upstream} == set(cluster.tls_seeds)
    with closing(Lake(relay.tls_seeds[0], 6, tls=TRUST)) as lake:
        lake.run_to(cluster)
        for vbucket in range(6):
            cluster.move_vbucket(vbucket, (vbucket + 1) % 3)
        fill(cluster, 60, prefix="moved")
        lake.run_to(cluster)
        cluster.drop_connections()
        relay.drop_connections()
        fill(cluster, 60, prefix="cut")
        lake.run_to(cluster)
        cluster.crash_restart(0, lost_seqnos=2)
        fill(cluster, 60, prefix="crashed")
        lake.run_to(cluster)
    assert not cluster.counters().connections_closed_for_errors


def test_it_stops_beside_nodes_that_hang(
    make_cluster: MakeCluster, make_relay: Callable[..., Relay], caplog: pytest.LogCaptureFixture
) -> None:
    """Such a node never ends its side of an encrypted connection."""
    cluster = make_cluster(nodes=2, vbuckets=2, tls=TLS_FILES)
    fill(cluster, 6)
    relay = make_relay(cluster, upstream=tuple(cluster.tls_seeds), tls=TRUST)
    wait_until_level(cluster, relay)
    for node in (0, 1):
        cluster.hang_node(node)
    begun = monotonic()
    relay.stop()
    assert monotonic() - begun < 20, "the loop gives up what takes 30 seconds"
    assert "did not end cleanly" not in caplog.text


def test_authorities_rotate_under_a_relay(
    make_cluster: MakeCluster, make_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    """Nothing has to be restarted: the next connection reads the file that was replaced."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    first = old.issue(["127.0.0.1"])
    shown = ShownCertificate(cert_file=first.cert_file, key_file=first.key_file)
    cluster = make_cluster(vbuckets=2, tls=shown)
    (seed,) = cluster.tls_seeds
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(Path(old.ca_file).read_bytes())
    relay = make_relay(cluster, upstream=(seed,), tls=TlsSettings(str(trusted)))
    wait_until_level(cluster, relay)
    shown.show(new.issue(["127.0.0.1"]))
    cluster.drop_connections()
    wait_for("a refusal", lambda: "verify failed" in relay.figures().upstream[0].trouble)
    trusted.write_bytes(Path(new.ca_file).read_bytes())
    fill(cluster, 60)
    wait_until_level(cluster, relay)


def test_the_command_and_what_top_shows_of_it(
    make_cluster: MakeCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    cluster = make_cluster(nodes=2, vbuckets=4, tls=TLS_FILES)
    fill(cluster, 60)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    trust = ("--ca-file", CERTIFICATE, "--https-port", str(port))
    with relaying(Encrypted(cluster.tls_seeds), tmp_path, *trust, *LISTEN) as relay:
        assert relay.ready["https_seeds"] == [f"127.0.0.1:{port}"]
        seed = relay.ready["tls_seeds"][0]
        with closing(Lake(seed, 4, "shown", tls=TRUST)) as lake:
            lake.run_to(cluster)
            words = ["top", "--user", USER, "--json", "--ca-file", CERTIFICATE]
            assert main([*words, "--relay", relay.ready["https_seeds"][0]]) == 0
            told = json.loads(capsys.readouterr().out)
            (shown,) = told["connections"]
            assert shown["name"].startswith("shown")
            assert {each["node"] for each in told["relay"]["upstream"]} == set(cluster.tls_seeds)
            for node in cluster.https_seeds:
                assert main([*words, "--producer", node]) == 0
                (ours,) = json.loads(capsys.readouterr().out)["connections"]
                assert ours["name"].startswith("dcplake-relay:")


def test_client_certificates_of_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both listeners refuse who has none; relay, consumer and ``top`` sign in by theirs."""
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    password, documents = tmp_path / "password", tmp_path / "documents.jsonl"
    password.write_text(PASSWORD)
    documents.write_text('{"key": "a", "value": 1}\n')
    serve = ["serve", "--port", "0", "--vbuckets", "2", "--user", USER, *required("--tls")]
    relay = ["relay", "--data", str(tmp_path / "relay"), "--listen", "127.0.0.1:0"]
    relay += ["--listen-user", USER, "--listen-password-file", str(password)]
    relay += required("--listen-tls")
    by_certificate = ["--ca-file", CERTIFICATE, "--cert-file", READER]
    environment = {**os.environ, "DCPLAKE_PASSWORD": PASSWORD}
    serving = OwnProcess(environment, *serve)
    with serving.killed_at_last():
        load = ["load", "--seeds", serving.seeds[0], "--user", USER, str(documents)]
        assert main(load) == 0
        upstream = ["--upstream", serving.ready["tls_seeds"][0]]
        assert main([*relay, *upstream, "--user", USER, "--ca-file", CERTIFICATE]) == 4
        assert "certificate required" in capsys.readouterr().err
        monkeypatch.delenv("DCPLAKE_PASSWORD")
        del environment["DCPLAKE_PASSWORD"]
        relaying = OwnProcess(environment, *relay, *upstream, *by_certificate)
        with relaying.killed_at_last():
            lake = Lake(
                relaying.ready["tls_seeds"][0],
                2,
                credentials=Credentials.of_certificate(),
                tls=TlsSettings(CERTIFICATE, READER),
            )
            with closing(lake):
                lake.run(lambda _: sum(map(len, lake.rows.values())) == 1)
            top = ["top", "--once", "--relay", relaying.ready["https_seeds"][0]]
            assert main([*top, *by_certificate]) == 0
            capsys.readouterr()
            assert main([*top, "--ca-file", CERTIFICATE]) == 4
            assert "certificate required" in capsys.readouterr().err


def required(prefix: str) -> list[str]:
    """Options of a listener that refuses clients without a certificate."""
    files = [
        f"{prefix}-cert",
        CERTIFICATE,
        f"{prefix}-key",
        KEY,
        f"{prefix}-client-ca",
        CERTIFICATE,
    ]
    return [*files, f"{prefix}-require-client-cert"]


def test_consumers_of_a_relay_that_signs_in_by_certificate_need_a_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["relay", "--upstream", "localhost:1", "--data", str(tmp_path)]
    assert main([*words, "--cert-file", READER]) == 2
    assert "expected a user of consumers: --listen-user" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--tls"], 4, "certificate verify failed"),  # the system does not trust it
        (["--ca-file", "/nowhere"], 2, "CA file '/nowhere'"),
        ([], 4, ""),  # an encrypted port does not speak plain
    ],
)
def test_top_does_not_trust_anybody(
    make_cluster: MakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    cluster = make_cluster(vbuckets=1, tls=TLS_FILES)
    words = ["top", "--user", USER, "--once", "--producer", cluster.https_seeds[0], *options]
    assert main(words) == code
    assert said in capsys.readouterr().err


def test_top_without_anybody_to_speak_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--tls"]) == 2
    assert (
        "--tls, --ca-file, --cert-file: found no --producer or --relay" in capsys.readouterr().err
    )
