"""Golden frames and facts of the case files, against the codec."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import main
from tests.wire.frames import CASES, golden_cases


@pytest.mark.parametrize("name", ["golden-frames.json", "more-golden-frames.json"])
def test_golden_files_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CASES / name)]) == 0
    count = len(json.loads((CASES / name).read_text())["frames"])
    assert capsys.readouterr().out == f"{count} passed, 0 failed\n"


def wrong_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 3  # durations may be rounded by 1
    if isinstance(value, str):
        return "0x1" + value[2:] if value.startswith("0x") else "x" + value
    if isinstance(value, list):
        return [*value, 12345]
    if isinstance(value, dict):
        return {**value, "nobody_has_this": 12345}
    return 12345


def test_every_wrong_field_of_every_golden_frame_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = []
    for case in golden_cases():
        for name, value in case["fields"].items():
            if name == "note":
                continue
            wrong = copy.deepcopy(case)
            wrong["name"] = f"{case['name']}: {name}"
            wrong["fields"] = {name: wrong_value(value)}
            planted.append(wrong)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({"frames": planted}))
    assert main([str(path)]) == 1
    output = capsys.readouterr().out
    missed = [case["name"] for case in planted if f": {case['name']}\n" not in output]
    assert missed == []
    assert output.endswith(f"0 passed, {len(planted)} failed\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"frames": [{"name": "n", "hex": "80", "fields": {}}]}', "expected exactly one"),
        ('{"frames": [{"name": "n", "hex": "zz", "fields": {}}]}', "ValueError"),
        ('{"frames": []}', "found no case"),
        ('{"policies": []}', "unknown format"),
        ("not json", "cannot be read"),
    ],
)
def test_what_is_not_understood_fails(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    path.write_text(content)
    assert main([str(path)]) == 1
    output = capsys.readouterr().out
    assert message in output
    assert output.endswith("0 passed, 1 failed\n")


def test_an_unknown_field_name_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = golden_cases()[0]
    case["fields"]["flavour"] = 1
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"frames": [case]}))
    assert main([str(path), str(tmp_path / "missing.json")]) == 1
    output = capsys.readouterr().out
    assert "flavour: found a field name that is not understood" in output
    assert output.endswith("0 passed, 2 failed\n")
