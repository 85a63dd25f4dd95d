"""``dcplake relay`` as a process: it is killed, it begins again, and its consumers lose nothing."""

import os
import signal
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from io import StringIO
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.producer.cluster import ProducerCluster
from dcp.relay.thread import Relay
from tests.cli.own_process import OwnProcess
from tests.client.drained import USERS, all_of, fill, wait_for
from tests.relay.following import relay_settings
from tests.relay.lakes import PATIENCE_SECONDS, Lake
from tests.relay.relaying import relaying

MakeCluster = Callable[..., ProducerCluster]


def test_a_stop_in_good_order(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(vbuckets=4)
    fill(cluster, 300)
    with relaying(cluster, tmp_path) as relay, closing(Lake(relay.seed, 4)) as lake:
        lake.run_to(cluster)
        assert relay.stop() == 0
        lake.close()
        sent = cluster.counters().items_sent
        with relaying(cluster, tmp_path) as again:
            lake.connect(again.seed)
            cluster.set(b"one more", b"1")
            lake.run_to(cluster)
        assert sum(cluster.counters().items_sent.values()) == sum(sent.values()) + 1
        assert lake.rollbacks == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_ends_a_relay_and_a_producer_in_good_order_with_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    [(user, password)] = USERS.items()
    words = ["serve", "--port", "0", "--vbuckets", "4", "--user", user]
    serving = OwnProcess({**os.environ, "DCPLAKE_PASSWORD": password}, *words)
    with serving.killed_at_last(), relaying(serving, tmp_path) as relay:
        for command, process in (("relay", relay), ("serve", serving)):
            process.process.send_signal(number)
            assert process.process.wait(process.stop_seconds) == 0
            assert capfd.readouterr().err.splitlines()[-1] == f"dcplake {command}: stopped"


def test_it_says_what_a_group_lacks(
    make_cluster: MakeCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = make_cluster(vbuckets=4)
    told = ""
    with relaying(cluster, tmp_path, "--fc", "min,g:/1") as relay:

        def is_told(text: str) -> bool:
            nonlocal told
            told += capfd.readouterr().err
            return text in told

        lacks = "0 of 1 receivers, no stream"
        wait_for("it says so", lambda: is_told(lacks), PATIENCE_SECONDS)
        with closing(Lake(relay.seed, 4)) as lake:
            opened = "the group is complete, so the relay opens their streams"
            lake.run(lambda _: is_told(opened))
        closed = "the group is incomplete, so the relay closes their streams"
        wait_for("it says so", lambda: is_told(closed), PATIENCE_SECONDS)


def test_without_the_cluster_it_serves_what_it_has(
    make_cluster: MakeCluster, make_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    cluster = make_cluster(vbuckets=4)
    fill(cluster, 100)
    first = make_relay(cluster)
    with closing(Lake(first.seeds[0], 4)) as lake:
        lake.run_to(cluster)
    first.stop()
    cluster.kill_node(0)
    with (
        Relay(relay_settings(cluster, tmp_path / "relay")) as relay,
        closing(Lake(relay.seeds[0], 4)) as other,
    ):
        other.run_to(cluster)
        cluster.restore_node(0)
        fill(cluster, 100, prefix="after")
        other.run_to(cluster)


def _refused(monkeypatch: pytest.MonkeyPatch, password: str | None, *words: str) -> tuple[int, str]:
    """Run the command to its refusal; return its exit code and what it said."""
    monkeypatch.delenv("DCPLAKE_PASSWORD", raising=False)
    if password is not None:
        monkeypatch.setenv("DCPLAKE_PASSWORD", password)
    said = StringIO()
    with redirect_stderr(said):
        code = main(["relay", *words])
    return code, said.getvalue()


def test_what_cannot_be(
    make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=4)
    other = make_cluster(vbuckets=8, seed=8)
    same_count = make_cluster(vbuckets=4, seed=9)
    (user, password) = next(iter(USERS.items()))
    folder = tmp_path / "relay"
    with relaying(cluster, folder) as relay:
        relay.stop()
    seed = cluster.seeds[0]
    usual = ["--user", user, "--data", str(folder), "--listen", "127.0.0.1:0"]
    for words, given, code, message in (
        (["--upstream", seed, *usual], None, 2, "no DCPLAKE_PASSWORD in the environment"),
        (["--upstream", seed, *usual], "wrong", 4, "SASL"),
        (["--upstream", seed, *usual, "--bucket", "b"], password, 4, "SELECT_BUCKET"),
        (
            ["--upstream", "localhost:1", *usual[:2], "--data", str(tmp_path / "new")],
            password,
            4,
            "none of 1 seeds answers",
        ),
        (["--upstream", "a b", *usual], password, 2, "node address 'a b'"),
        (["--upstream", seed, *usual[:-1], "nowhere"], password, 2, "--listen: found 'nowhere'"),
        (["--upstream", other.seeds[0], *usual], password, 2, "vbuckets: found 4, expected 8"),
        (["--upstream", same_count.seeds[0], *usual], password, 2, "bucket uuid: found"),
        (
            ["--upstream", seed, *usual, "--window-bytes", "0"],
            password,
            2,
            "--window-bytes: found 0",
        ),
        (["--upstream", seed, *usual, "--listen-user", "u"], password, 2, "--listen-user"),
        (["--upstream", seed, *usual, "--ca-file", "/nowhere"], password, 2, "CA file '/nowhere'"),
        (
            ["--upstream", seed, *usual[:3], str(tmp_path / "new"), "--listen-tls-cert", "nowhere"],
            password,
            2,
            "relay tls (--listen-tls-cert, ",
        ),
    ):
        ended, said = _refused(monkeypatch, given, *words)
        assert (ended, message in said) == (code, True), said
    assert not (tmp_path / "new").exists()


def test_the_bucket_is_made_anew(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """What fills a relay turns out to be another bucket: it ends, and says so."""
    cluster = make_cluster(vbuckets=4)
    fill(cluster, 10)
    with relaying(cluster, tmp_path) as relay:
        with cluster.batch():
            cluster.bucket.map.bucket_uuid = "another"
        cluster.move_vbucket(0, 0)
        assert relay.process.wait(60) == 4
    assert all_of(cluster)


@pytest.mark.parametrize("option", ["--upstream", "--data", "--listen", "--window-bytes"])
def test_help_names_the_options(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relay", "--help"]) == 0
    assert option in capsys.readouterr().out
