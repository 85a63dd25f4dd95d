"""The memory of a producer process in ``dcplake top --producer``."""

import json
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.client.kv.kv_client import KvClient
from dcp.producer.memory import producer_bytes
from dcp.server.commands.memory_formula import Load
from tests.cli.serving import Serving

PASSWORD = "secret-of-the-test"
MIB = 2**20


@pytest.mark.parametrize("on_disk", [True, False])
def test_memory_stands_beside_its_bound(
    on_disk: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    words = ["--data", str(tmp_path / "data")] if on_disk else []
    producer = Serving("tester", "--vbuckets", "8", "--port", "0", *words)
    with producer.killed_at_last():
        with KvClient(producer.seeds, "tester", PASSWORD, "default") as client:
            client.set(
                (b"key-%03d" % number, b'{"pad":"%s"}' % (b"x" * 5000)) for number in range(400)
            )
        http = producer.ready["http_seeds"][0]
        where = ["top", "--user", "tester", "--producer", http, "--once"]
        assert main([*where, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["relay"] is None
        resident_bytes = told["producer"]["resident_bytes"]
        bound_bytes = told["producer"]["memory_bound_bytes"]
        assert 20 * MIB < resident_bytes < bound_bytes
        load = Load(400, key_bytes=7, connections=1)
        without = producer_bytes(load, checkpoint_quota_bytes=256 * MIB, values_bytes=0)
        held = 1 + (not on_disk)  # the values, and the log, each 2 MB and more
        more = bound_bytes - without
        clients_of_who_just_left = 64 * MIB
        assert held * 2_000_000 <= more <= held * 4_000_000 + 2 * clients_of_who_just_left
        assert main(where) == 0
        text = capsys.readouterr().out
        assert "producer: RSS " in text and " of at most " in text
        assert main([*where, "--metrics"]) == 0
        metrics = capsys.readouterr().out.splitlines()
        assert any(line.startswith("dcp_producer_resident_bytes ") for line in metrics)
        assert any(line.startswith("dcp_producer_memory_bound_bytes ") for line in metrics)


def test_several_nodes_have_no_formula(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DCPLAKE_PASSWORD", PASSWORD)
    producer = Serving("tester", "--vbuckets", "8", "--port", "0", "--nodes", "2")
    with producer.killed_at_last():
        http = producer.ready["http_seeds"][0]
        assert main(["top", "--user", "tester", "--producer", http, "--once"]) == 0
        text = capsys.readouterr().out
    assert "producer: RSS " in text and "at most" not in text
