"""``dcplake add-node`` and ``dcplake rebalance`` on a ``dcplake serve`` with replicas."""

import re
from collections.abc import Iterator

import pytest

from dcp.cli.main import main
from dcp.client.kv.kv_client import KvClient
from tests.cli.serving import serving

USER, PASSWORD = "tester", "secret-of-the-test"
KEYS = [b"k%d" % number for number in range(80)]


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    with serving(USER, "--nodes", "2", "--replicas", "1") as found:
        yield found


def test_a_node_comes_and_another_goes(
    seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with KvClient(seeds, USER, PASSWORD, "default") as client:
        client.set((key, b"{}") for key in KEYS)
    words = ["--user", USER, "--seeds"]

    assert main(["add-node", *words, seeds[0]]) == 0
    added = re.search(r"node 3 listens on (\S+);", capsys.readouterr().out)
    assert added is not None

    assert main(["rebalance", *words, seeds[0]]) == 0
    assert "vbuckets are even: node 1: 3, node 2: 3, node 3: 2" in capsys.readouterr().out

    assert main(["rebalance", *words, ",".join([seeds[0], added[1]]), "--remove", "1"]) == 0
    assert "vbuckets are even: node 2: 4, node 3: 4" in capsys.readouterr().out
    with KvClient([added[1]], USER, PASSWORD, "default") as client:
        assert client.get(KEYS).keys() == set(KEYS)

    assert main(["rebalance", *words, seeds[1], "--remove", "1"]) == 4
    assert "to remove, expected a member" in capsys.readouterr().err


def test_a_node_that_goes_is_the_only_one_that_is_named(
    seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer comes from another member then."""
    assert main(["rebalance", "--user", USER, "--seeds", seeds[1], "--remove", "2"]) == 0
    assert "vbuckets are even: node 1: 8" in capsys.readouterr().out
