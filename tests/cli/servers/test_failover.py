"""``dcplake serve`` as a process, ``dcplake replication`` and ``dcplake failover`` on it."""

from collections.abc import Iterator

import pytest

from dcp.cli.main import main
from dcp.client.kv.kv_client import KvClient
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, VbucketState
from tests.cli.serving import serving
from tests.client.drained import wait_for
from tests.producer.raw_client import RawClient

USER, PASSWORD = "tester", "secret-of-the-test"


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two nodes with four vbuckets each, and a replica of each at the other node."""
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    with serving(USER, "--nodes", "2", "--replicas", "1", "--rules", "server") as found:
        yield found


def _copied(seeds: list[str]) -> int:
    """Return how many seqnos the nodes' replicas hold."""
    asked = m.GetAllVbSeqnos(int(VbucketState.REPLICA))
    total = 0
    for seed in seeds:
        with RawClient(seed) as client:
            client.log_in(user=USER, password=PASSWORD)
            answer = client.ok(asked, Opcode.GET_ALL_VB_SEQNOS)
            assert isinstance(answer, m.AllVbSeqnos)
            total += sum(seqno for _, seqno in answer.seqnos)
    return total


def _values(seeds: list[str], keys: list[bytes]) -> dict[bytes, bytes]:
    with KvClient(seeds, USER, PASSWORD, "default") as client:
        return client.get(keys)


def test_a_failover_loses_what_was_written_while_replicas_stood_still(
    seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [b"k%d" % number for number in range(80)]
    late = [b"late%d" % number for number in range(80)]
    with KvClient(seeds, USER, PASSWORD, "default") as client:
        client.set((key, b"{}") for key in keys)
        assert main(["replication", "--user", USER, "--seeds", seeds[0], "resume"]) == 0
        wait_for("the replicas", lambda: _copied(seeds) == 80)
        assert main(["replication", "--user", USER, "--seeds", seeds[1], "pause"]) == 0
        assert "loses what is written from now on" in capsys.readouterr().out
        client.set((key, b"{}") for key in late)
    words = ["failover", "--user", USER, "--seeds"]

    assert main([*words, ",".join(seeds), "2"]) == 0

    assert "node 2 is out of the cluster; its 4 vbuckets go on" in capsys.readouterr().out
    left = _values(seeds[:1], keys + late)
    assert set(keys + late) - set(left) == {key for key in late if vbucket_of(key, 8) >= 4}

    assert main([*words, seeds[1], "1"]) == 4
    assert "cannot connect" in capsys.readouterr().err
    assert main([*words, seeds[0], "1"]) == 4
    assert "no other running node to take its place" in capsys.readouterr().err
    assert main([*words, seeds[0], "3"]) == 4
    assert "expected a number from 1 to 2" in capsys.readouterr().err


def test_a_refusal_of_an_ephemeral_bucket_names_what_needs_a_disk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--bucket-type", "ephemeral", "--history-retention", "5"]) == 2
    assert (
        "found ephemeral with history_retention_bytes (--history-retention), expected"
        in capsys.readouterr().err
    )


def test_serve_refuses_rules_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value, said in (
        ("--rules", "mine", "--rules: 'mine' is not one of 'document', 'server';"),
        ("--replica-lag", "1", "serve --replica-lag, which dcplake does not have: serve with"),
    ):
        assert main(["serve", option, value]) == 2
        assert said in capsys.readouterr().err
