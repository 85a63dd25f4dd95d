"""Every recorded conversation repeated with our producer.

What need not be the same is said, with the reasons, in ``tests/producer_conformance``:
``comparison.py`` (parts of frames), ``watching.py`` (controls), ``rehearsal.py`` (order and gaps).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import main
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.producer_conformance.producer_transcripts import ProducerTranscripts

CAPTURES = Path(__file__).parents[2] / "data" / "captures"

PASSING = {
    "01-backfill-then-memory": 64,
    "02-flow-control": 45,
    "02b-flow-control-close": 45,
    "03-noop": 57,
    "04-data-kinds-disk": 473,
    "04-data-kinds-memory": 305,
    "05-collections-disk": 306,
    "05b-collections-live": 92,
    "05c-stream-ids": 24,
    "06-rollback": 324,
    "07-failover-log-and-seqnos": 30,
    "08-errors": 158,
    "10-hello-sasl": 29,
    "11-oso": 291,
    "12-sync-writes-disk": 249,
    "13-bounded-streams": 146,
    "14-bounded-memory-tail": 83,
    "14b-oso-latest": 82,
    "17-stalled-reader": 39,
    "20-clustermap-and-ephemeral": 73,
}
"""All transcripts, with how many frames were compared."""


def results(name: str) -> list[CaseResult]:
    return list(ProducerTranscripts().run(CaseFile.read(CAPTURES / f"{name}.jsonl")))


def names() -> Iterator[str]:
    return (path.stem for path in sorted(CAPTURES.glob("*.jsonl")))


def test_every_transcript_is_in_the_table() -> None:
    assert sorted(PASSING) == list(names())


@pytest.mark.parametrize("name", PASSING)
def test_passes(name: str) -> None:
    found = results(name)
    assert [text for result in found for text in result.failures] == []
    assert sum(result.tally["compared"] for result in found) == PASSING[name]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = CAPTURES / "10-hello-sasl.jsonl"
    lines = [json.loads(line) for line in whole.read_text().splitlines()]
    lines[1]["hex"] = lines[1]["hex"][:12] + "0084" + lines[1]["hex"][16:]
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("\n".join(map(json.dumps, lines)))
    assert main(["--producer", str(whole), str(damaged)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{whole}: 29 compared"
    assert said[1] == f"FAILED {damaged}: hello (from line 1)"
    assert "vbucket_or_status: found 0x00, expected 0x84" in said[2]
    assert said[-1] == "15 passed, 1 failed"
