"""``dcplake load``: what it tells of its progress."""

import re
from pathlib import Path

import pytest

from dcp.cli.main import main
from dcp.cli.terminal import progress
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings

DOCUMENTS = 4000


def test_its_progress_tells_documents_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "documents.jsonl"
    file.write_text("".join(f'{{"id": {number}}}\n' for number in range(DOCUMENTS)))
    monkeypatch.setattr(progress, "_TELL_SECONDS", 0.001)
    monkeypatch.setenv("DCPLAKE_PASSWORD", "password")
    with ProducerCluster(ClusterSettings(vbuckets=4)) as cluster:
        words = ["load", "--seeds", ",".join(cluster.seeds), "--key-field", "id", str(file)]
        assert main(words) == 0

    *lines, last = capsys.readouterr().out.splitlines()
    number = r"[\d,]+"
    line = (
        rf"loading {re.escape(str(file))}: {number}(?: of {file.stat().st_size:,})? bytes, "
        rf"{number} a second, ({number}) documents, {number} a second(?:, {number} s left)?"
    )
    told = [re.fullmatch(line, each) for each in lines]
    documents = [int(each[1].replace(",", "")) for each in told if each is not None]
    assert len(documents) == len(lines), lines
    assert documents == sorted(documents)
    assert any(0 < count < DOCUMENTS for count in documents), "it was told meanwhile"
    assert re.fullmatch(rf"{DOCUMENTS:,} documents stored in .*, {number} a second", last)
