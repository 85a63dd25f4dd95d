"""Encrypted on both sides, with a cluster of several nodes: relay, consumers, and ``top``."""

import json
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.relay.relay_thread import Relay
from dcp.tls_settings import TlsSettings
from tests.client.drained import USERS, fill, wait_for
from tests.producer.authority import Authority, ShownCertificate
from tests.producer.tls import CERTIFICATE, KEY, TLS_FILES
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
    assert "--tls, --ca-file: found no --producer or --relay" in capsys.readouterr().err
