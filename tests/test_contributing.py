"""What docs/contributing.md says of the places to change, held against the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")

MESSAGE = r"\bOsoSnapshot\b|\bDCP_OSO_SNAPSHOT\b"
ADDITIONS = {
    "setting": (1, "dcp", r"\bminimum_interval_seconds(:| =|`)"),
    "setting of the connection": (1, "dcp", r"\bconnect_timeout_seconds(:| =|`)"),
    "setting of `dcplake serve` or `dcplake relay`": (
        1,
        "dcp",
        r"\bhistory_retention_bytes:|--history-retention\b",
    ),
    "metric of a lake": (
        2,
        "dcp/lake",
        r"\bdcplake_waiting_vbuckets\b|\bwaiting: tuple|\bwaiting=tuple",
    ),
    "replica column": (3, "dcp/lake", r"\bexpiry\b"),
    "message of the protocol": (4, "dcp/wire dcp/protocol dcp/client dcp/lake", MESSAGE),
    "the same message in the embedded producer": (3, "dcp/server dcp/producer dcp/relay", MESSAGE),
}
"""By what is added: the most modules that name its example, their folders, and its pattern."""


def rows(section: str) -> list[list[str]]:
    text = PAGE.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows("How to add"), ids=lambda row: row[0])
def test_an_addition_takes_few_files(row: list[str]) -> None:
    what, _, files, then = row
    most, folders, pattern = ADDITIONS[what]
    named = set(re.findall(r"`(dcp/[\w/.]+)`", files))
    found = {
        str(path.relative_to(ROOT))
        for folder in folders.split()
        for path in (ROOT / folder).rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"))
    }
    assert named == found and len(found) <= most
    others = re.findall(r"`((?:conf|deploy|docs)/[\w/.]+)`", then)
    assert others
    for name in others:
        assert re.search(pattern, (ROOT / name).read_text(encoding="utf-8")), name


def test_every_addition_is_told() -> None:
    assert {row[0] for row in rows("How to add")} == ADDITIONS.keys()


@pytest.mark.parametrize("row", rows("Where it is decided"), ids=lambda row: row[0])
def test_a_decision_is_in_two_files_at_most(row: list[str]) -> None:
    _, files, functions = row
    named = re.findall(r"`(dcp/[\w/.]+)`", files)
    assert 1 <= len(named) <= 2
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in named]
    for name in re.findall(r"`(?:\w+\.)?(\w+)(?:\(\))?`", functions):
        # A setting is added by a call of `key`; all others are defined there.
        pattern = rf"\b{name}\(" if name == "key" else rf"\bdef {name}\("
        assert any(re.search(pattern, text) for text in texts), name
