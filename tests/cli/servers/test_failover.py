"""``dcplake serve`` as a process, and ``dcplake failover`` on it."""

from collections.abc import Iterator

import pytest

from dcp.cli.main import main
from dcp.producer.clients.kv_client import KvClient
from dcp.types import vbucket_of
from tests.cli.serving import serving

USER, PASSWORD = "tester", "secret-of-the-test"


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two nodes with four vbuckets each; replicas lack the newest seqno."""
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    with serving(USER, "--nodes", "2", "--replica-lag", "1", "--rules", "server") as found:
        yield found


def _values(seeds: list[str], keys: list[bytes]) -> dict[bytes, bytes]:
    with KvClient(seeds, USER, PASSWORD, "default") as client:
        return client.get(keys)


def test_a_failover_loses_what_the_replicas_had_not(
    seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [b"k%d" % number for number in range(80)]
    with KvClient(seeds, USER, PASSWORD, "default") as client:
        client.set((key, b"{}") for key in keys)
    newest = {vbucket_of(key, 8): key for key in keys}
    words = ["failover", "--user", USER, "--seeds"]

    assert main([*words, ",".join(seeds), "2"]) == 0

    assert "node 2 is out of the cluster; its 4 vbuckets go on" in capsys.readouterr().out
    left = _values(seeds[:1], keys)
    assert set(keys) - set(left) == {newest[vbucket] for vbucket in range(4, 8)}

    assert main([*words, seeds[1], "1"]) == 4
    assert "cannot connect" in capsys.readouterr().err
    assert main([*words, seeds[0], "1"]) == 4
    assert "no other living node to take its place" in capsys.readouterr().err
    assert main([*words, seeds[0], "3"]) == 4
    assert "expected a number from 1 to 2" in capsys.readouterr().err


def test_serve_refuses_rules_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value, said in (
        ("--rules", "mine", "--rules: 'mine' is not one of 'document', 'server';"),
        (
            "--replica-lag",
            "-1",
            "--replica-lag: found '-1': Input should be greater than or equal to 0;",
        ),
    ):
        assert main(["serve", option, value]) == 2
        assert said in capsys.readouterr().err
