"""Every recorded conversation played to our producer, in the states that its scenario names.

What need not be the same is said, with the reasons, in ``docs/howto/conformance.md``.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.conformance import main
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.conformance_formats.transcripts import parse_line
from tests.producer_conformance.draft import draft, printed
from tests.producer_conformance.producer_transcripts import ProducerTranscripts
from tests.producer_conformance.scenario_file import scenarios_of
from tests.seeds import seeds

(SEED,) = seeds(1)
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
LEAST_COMPARED = 2915
DRAFTED = {
    "01-backfill-then-memory",
    "02-flow-control",
    "02b-flow-control-close",
    "04-data-kinds-memory",
    "05-collections-disk",
    "05c-stream-ids",
    "10-hello-sasl",
    "12-sync-writes-disk",
    "14b-oso-latest",
    "20-clustermap-and-ephemeral",
}
"""Those that a drafted scenario explains whole."""


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


def test_no_fewer_frames_are_compared() -> None:
    assert sum(PASSING.values()) >= LEAST_COMPARED


@pytest.mark.parametrize("name", PASSING)
def test_a_recording_may_end_anywhere(name: str) -> None:
    file = CaseFile.read(CAPTURES / f"{name}.jsonl")
    end = Random(f"{SEED} {name}").randrange(1, len(file.content))
    cut = CaseFile(file.path, file.content[:end], is_lines=True)
    found = [text for result in ProducerTranscripts().run(cut) for text in result.failures]
    assert found == [], f"seed {SEED}: line {end}"


def without_scenario(tmp_path: Path, name: str) -> Path:
    """A recording under a name that has no scenario."""
    copied = tmp_path / f"new-{name}.jsonl"
    shutil.copyfile(CAPTURES / f"{name}.jsonl", copied)
    return copied


@pytest.mark.parametrize("name", sorted(DRAFTED))
def test_a_new_recording_is_compared_by_a_drafted_scenario(tmp_path: Path, name: str) -> None:
    found = list(ProducerTranscripts().run(CaseFile.read(without_scenario(tmp_path, name))))
    assert [text for result in found for text in result.failures] == []
    assert sum(result.tally["compared"] for result in found) == PASSING[name]


def test_what_a_draft_does_not_explain_is_said_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = without_scenario(tmp_path, "17-stalled-reader")
    assert main(["--producer", str(new)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert "line 58: DCP_SNAPSHOT_MARKER of vbucket 0: found nothing, expected it" in said[1]
    assert "the recording has no scenario" in said[1]
    assert said[2] == f"{new}: 36 compared, 2 not compared (after a difference)"


def test_a_printed_draft_is_a_scenario(tmp_path: Path) -> None:
    new = without_scenario(tmp_path, "12-sync-writes-disk")
    lines = [parse_line(number, raw) for number, raw in enumerate(CaseFile.read(new).content, 1)]
    text = printed(draft(lines))
    new.with_suffix(".scenario.json").write_text(text)
    assert scenarios_of(new) != ()
    assert [result.failures for result in ProducerTranscripts().run(CaseFile.read(new))] == [()] * 8


@pytest.mark.parametrize(
    "text",
    ["{", '[{"steps": [], "bukket": "a"}]', '[{"steps": [{"before": 1, "do": "fly"}]}]'],
)
def test_a_scenario_that_is_none_is_refused_by_name(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = without_scenario(tmp_path, "10-hello-sasl")
    scenario = new.with_suffix(".scenario.json")
    scenario.write_text(text)
    assert main(["--producer", str(new)]) == 1
    said = capsys.readouterr().out
    assert f"{scenario}: found" in said
    assert "expected a scenario" in said


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
