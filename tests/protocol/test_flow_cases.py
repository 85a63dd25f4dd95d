"""The given cases of flow control pass; every wrong expectation and what is unknown is found."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import main, run_file

CASES = Path(__file__).parents[1] / "data" / "cases"
FILES = {
    "aeron-cases.json": 115,
    "more-aeron-cases.json": 41,
    "policy-cases.json": 37,
    "more-policy-cases.json": 14,
}

Case = dict[str, Any]


def content_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CASES / name).read_text())
    return content


def sections_of(content: dict[str, Any]) -> dict[str, list[Case]]:
    return {
        name: cases
        for name, cases in content.items()
        if isinstance(cases, list) and cases and "id" in cases[0]
    }


@pytest.mark.parametrize("name", FILES)
def test_the_files_pass(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(CASES / name)]) == 0
    assert capsys.readouterr().out.endswith(f"{FILES[name]} passed, 0 failed\n")


@pytest.mark.parametrize(
    ("executed_on", "size", "said"),
    [
        ("762", 4_294_967_360, "CONTROL connection_buffer_size=4294967360"),
        ("master", 4_294_967_295, "CONTROL connection_buffer_size=4294967295"),
    ],
)
def test_a_window_beyond_32_bits_is_said_as_it_is_before_servers_cut_it(
    executed_on: str, size: int, said: str, tmp_path: Path
) -> None:
    events = [
        {"op": "connect", "conn": "a"},
        {"op": "expect_sizes", "sizes": {"a": size}},
        {"op": "consumer_step", "conn": "a", "expect": said},
        {"op": "consumer_step", "conn": "a", "expect": "nothing"},
    ]
    case = {"id": "beyond", "policy": "ratio", "bucket_quota": 21_474_836_480, "events": events}
    case |= {"executed_on": executed_on, "config": {"ratio": 0.2}}
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"policy_cases": [case]}))
    (result,) = run_file(path)
    assert result.failures == ()


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["--help"], 0, "Run case files", ""),
        (["--producer", "-h"], 0, "Run case files", ""),
        (["--nonsense"], 2, "", "usage: "),
        ([], 2, "", "usage: "),
    ],
)
def test_who_asks_how_to_run_cases_is_told(
    words: list[str], code: int, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    told = capsys.readouterr()
    assert told.out.startswith(out) and told.err.startswith(err)


def test_the_tally_tells_how_choices_fell(capsys: pytest.CaptureFixture[str]) -> None:
    path = CASES / "aeron-cases.json"
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        f"{path}: 103 as Aeron, 10 as Aeron's C driver alone, 2 as Aeron's Java driver alone"
    )


@pytest.mark.parametrize("name", FILES)
def test_each_section_runs_alone_and_under_other_ids(name: str, tmp_path: Path) -> None:
    for section, cases in sections_of(content_of(name)).items():
        renamed = [{**case, "id": f"other {index}"} for index, case in enumerate(cases)]
        path = tmp_path / "one.json"
        path.write_text(json.dumps({section: renamed}))
        results = list(run_file(path))
        assert [each.name for each in results] == [each["id"] for each in renamed]
        assert [each.failures for each in results] == [()] * len(renamed)


def spoilt(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, dict):
        return {name: size + 1 for name, size in value.items()}
    return "BUFFER_ACK 1" if value == "nothing" else f"{value}1"


def damaged(case: Case) -> Iterator[Case]:
    """A case with each of its expectations wrong, one at a time."""
    steps = "steps" if "steps" in case else "events"
    for at, step in enumerate(case.get(steps, [])):
        for key in (key for key in step if key.startswith("expect") or key == "sizes"):
            wrong = copy.deepcopy(case)
            wrong[steps][at][key] = spoilt(step[key])
            yield wrong
    for key in (key for key in case if key.startswith("expect_")):
        yield {**case, key: not case[key]}
    if "java" in case:
        wrong = copy.deepcopy(case)
        for driver in ("java", "c"):
            told = wrong[driver]
            if told["accepted"] and told.get("strategy") and case["agree"]:
                told["rrwm"] += 1
                yield copy.deepcopy(wrong)
        yield {**case, "agree": not case["agree"]}


@pytest.mark.parametrize("name", FILES)
def test_every_wrong_expectation_is_found(name: str, tmp_path: Path) -> None:
    content: dict[str, list[Case]] = {}
    for section, cases in sections_of(content_of(name)).items():
        content[section] = [wrong for case in cases for wrong in damaged(case)]
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(content))
    results = list(run_file(path))
    assert len(results) == sum(len(cases) for cases in content.values()) > FILES[name]
    assert [each.name for each in results if not each.failures] == []
    assert all("expected" in text for each in results for text in each.failures)


STEP = {"receiver": 1, "position": 0, "window": 1, "sender_limit": 0, "now_ns": 0}


@pytest.mark.parametrize(
    ("section", "case", "said"),
    [
        ("flow_control_cases", {"fc": "max", "steps": [{"op": "fly"}]}, "found an unknown step"),
        ("flow_control_cases", {"fc": "best", "steps": []}, "ConfigError: fc=best"),
        ("flow_control_cases", {"fc": "min", "steps": [{"op": "sm"}]}, "KeyError: 'receiver'"),
        ("flow_control_cases", {"fc": "min", "steps": [3]}, "AttributeError"),
        (
            "flow_control_cases",
            {"fc": "min", "kind": "defect", "run_on": ["java"], "steps": [{"op": "sm", **STEP}]},
            "found the driver's wrong answers, expected others",
        ),
        (
            "flow_control_cases",
            {
                "fc": "min",
                "kind": "divergence",
                "run_on": ["java"],
                "steps": [{"op": "sm", **STEP, "expect_limit": 77}],
            },
            "its model says: step 1, sm: found 1, expected 77",
        ),
        ("parse_cases", {"fc": "max", "java": {"accepted": False}}, "KeyError: 'c'"),
        ("liveness_cases", {"steps": [{"op": "wake"}]}, "expected one of sm, idle, close, alive"),
        ("connected_truth_table", {"expect_connected": True}, "KeyError"),
        ("policy_cases", {"policy": "greedy", "bucket_quota": 1, "events": []}, "'greedy' is not"),
        (
            "policy_cases",
            {"policy": "static", "bucket_quota": 1, "config": {"speed": 1}, "events": []},
            "found the setting 'speed', expected one of min, max",
        ),
        (
            "policy_cases",
            {"policy": "static", "bucket_quota": 1, "events": [{"op": "leap"}]},
            "event 1, leap: found an unknown event",
        ),
        ("producer_window_cases", {"steps": [{"op": "shout"}]}, "step 1, shout: found an unknown"),
    ],
)
def test_what_is_not_understood_fails_and_the_rest_is_run(
    section: str, case: Case, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "cases.json"
    good = next(
        cases[0]
        for name in ("aeron-cases.json", "policy-cases.json")
        for found, cases in sections_of(content_of(name)).items()
        if found == section
    )
    path.write_text(json.dumps({section: [{"id": "wrong", **case}, good]}))
    wrong, right = run_file(path)
    assert wrong.name == "wrong"
    assert said in "\n".join(wrong.failures)
    assert right.failures == ()


def test_an_unknown_section_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"about": "text", "liveness_cases": [], "dance_cases": [{}]}))
    [result] = run_file(path)
    assert result.name == "dance_cases"
    assert "found an unknown section, expected: flow_control_cases" in result.failures[0]
