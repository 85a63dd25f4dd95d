"""``dcplake serve --join``: a cluster of real processes, of which one is killed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

import pytest

from dcp.cli.main import main
from dcp.client.consumer import Consumer
from dcp.client.vbucket_track import StreamStart
from dcp.producer.admin_client import AdminClient
from dcp.producer.kv_client import KvClient
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, VbucketState
from tests.cli.own_process import port_kept
from tests.cli.serving import Serving
from tests.client.connecting import START
from tests.client.consuming import settings
from tests.client.drained import CREDENTIALS, USERS, Drained, wait_for
from tests.producer.raw_client import RawClient

USER, PASSWORD = next(iter(USERS.items()))
Serve = Callable[..., Serving]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    with ExitStack() as stack:

        def begin(*words: str) -> Serving:
            process = Serving(USER, *words)
            stack.callback(process.stop)
            return process

        yield begin


def _order(command: str, seed: str, *words: str) -> int:
    return main([command, "--user", USER, "--seeds", seed, *words])


def _write(seed: str, prefix: str) -> set[bytes]:
    keys = {f"{prefix}-{number}".encode() for number in range(200)}
    with KvClient([seed], USER, PASSWORD, "default") as client:
        client.set((key, b"{}") for key in keys)
    return keys


def _seqnos(seed: str, state: VbucketState) -> dict[int, int]:
    with RawClient(seed) as client:
        client.log_in(user=USER, password=PASSWORD)
        answer = client.ok(m.GetAllVbSeqnos(state), Opcode.GET_ALL_VB_SEQNOS)
    assert isinstance(answer, m.AllVbSeqnos)
    return dict(answer.seqnos)


def _has_copies(first: str, second: str) -> bool:
    """Whether either process has a copy of all that the other one has."""
    active, replica = VbucketState.ACTIVE, VbucketState.REPLICA
    return _seqnos(first, active) == _seqnos(second, replica) and (
        _seqnos(second, active) == _seqnos(first, replica)
    )


def _is_alive(seed: str, number: int) -> bool:
    with AdminClient([seed], USER, PASSWORD, "default") as admin:
        return admin.nodes()[number - 1].alive


def _has(keys: set[bytes]) -> Callable[[Drained], bool]:
    return lambda drained: {key for held in drained.documents.values() for key in held} >= keys


def _stream(seeds: list[str]) -> Consumer:
    streams = [StreamStart(vbucket, None, START) for vbucket in range(8)]
    return Consumer(streams, seeds, settings(), CREDENTIALS, "test", Random(5))


def test_a_process_joins_is_killed_and_joins_again(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """A consumer streams on through all of it: no row is lost, and none comes twice."""
    first = serve("--port", "0", "--vbuckets", "8", "--replicas", "1")
    (seed,) = first.seeds
    second = serve("--port", "0", "--join", seed)
    assert (second.ready["node"], second.seeds[0]) == (2, seed)
    keys = _write(seed, "before")
    with _stream([seed]) as consumer:
        drained = Drained().run(consumer, _has(keys))
        assert _order("rebalance", second.seeds[1]) == 0
        assert "vbuckets are even: node 1: 4, node 2: 4" in capsys.readouterr().out
        keys |= _write(seed, "moved")
        drained.run(consumer, _has(keys))
        wait_for("copies", lambda: _has_copies(*second.seeds))

        port = second.seeds[1].rpartition(":")[2]
        second.kill()
        with port_kept(int(port)):
            wait_for("node 2 is found dead", lambda: not _is_alive(seed, 2))
            assert _order("failover", seed, "2") == 0
            assert "its 4 vbuckets go on from their replicas" in capsys.readouterr().out
            keys |= _write(seed, "failed over")
            drained.run(consumer, _has(keys))
            third = serve("--port", port, "--join", seed)
        assert (third.ready["node"], third.seeds) == (2, second.seeds)
        assert _order("rebalance", seed) == 0
        keys |= _write(seed, "again")
        drained.run(consumer, _has(keys))
        assert drained.stopped == {}
        assert drained.rows == len(keys)
    with KvClient([third.seeds[1]], USER, PASSWORD, "default") as client:
        assert client.get(keys).keys() == keys
    assert (third.stop(), first.stop()) == (0, 0)


def test_the_first_process_is_killed(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """The second serves its vbuckets as before; there is nobody to order anything."""
    first = serve("--port", "0", "--vbuckets", "8", "--replicas", "1")
    second = serve("--port", "0", "--join", first.seeds[0])
    assert _order("rebalance", first.seeds[0]) == 0
    keys = _write(first.seeds[0], "before")
    own = set(_seqnos(second.seeds[1], VbucketState.ACTIVE))
    assert len(own) == 4
    first.kill()
    with RawClient(second.seeds[1]) as client:
        client.log_in(user=USER, password=PASSWORD)
        for key in keys:
            vbucket = vbucket_of(key, 8)
            if vbucket in own:
                client.ok(m.Store(b"\0" + key, b"alone"), Opcode.SET, vbucket=vbucket)
    capsys.readouterr()
    assert _order("failover", second.seeds[1], "1") == 4
    assert f"{first.seeds[0]}: cannot connect" in capsys.readouterr().err
    assert second.stop() == 0


def test_who_cannot_join(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    first = serve("--port", "0")
    (seed,) = first.seeds
    assert main(["serve", "--port", "0", "--user", "nobody", "--join", seed]) != 0
    assert "check the name 'nobody'" in capsys.readouterr().err
    assert first.stop() == 0
    assert main(["serve", "--port", "0", "--user", USER, "--join", seed]) == 4
    assert "no node answers" in capsys.readouterr().err
