"""``dcplake load``: what it tells of its progress."""

import re
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.cli.terminal.progress import Look
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster

DOCUMENTS = 1200


def test_its_progress_tells_documents_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[int, str]] = []

    class Display:
        def __init__(self, _title: str, total: int, unit: str, look: Look) -> None:
            assert (total, unit) == (file.stat().st_size, "bytes")
            self._look = look

        def start(self) -> None:
            told.append(self._look())

        def stop(self) -> None:
            told.append(self._look())

    file = tmp_path / "documents.jsonl"
    file.write_text("".join(f'{{"id": {number}}}\n' for number in range(DOCUMENTS)))
    monkeypatch.setattr("dcp.cli.servers.load.display", Display)
    monkeypatch.setenv("DCPLAKE_PASSWORD", "password")
    with ProducerCluster(ClusterSettings(vbuckets=4)) as cluster:
        words = ["load", "--seeds", ",".join(cluster.seeds), "--key-field", "id", str(file)]
        assert main(words) == 0

    assert told[0] == (0, "0 documents, 0 a second")
    assert told[-1][0] == file.stat().st_size
    assert re.fullmatch(r"1,200 documents, [\d,]+ a second", told[-1][1])
    assert re.search(r"1,200 documents stored in .*, [\d,]+ a second\n$", capsys.readouterr().out)
