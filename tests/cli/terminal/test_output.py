"""JSON of values of any kind, names that are not repeated, and files that are written whole."""

import errno
import json
from decimal import Decimal
from pathlib import Path

import pytest

from dcp.cli.terminal.output import json_text, unique_names, write_whole
from dcp.errors import SetupError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("18446744073709551615"), "18446744073709551615"),
        (Decimal("99999999999999999999999999999999999999"), "9" * 38),
        (Decimal("2.00"), "2"),
        ([Decimal("1.5"), {"d": Decimal("1.50")}], '[1.5,{"d":1.50}]'),
        (Decimal("0.12345678901234567890123"), "0.12345678901234567890123"),
        (Decimal("-1E-10"), "-0.0000000001"),
        (Decimal("1E+3"), "1000"),
        ([float("nan"), float("inf"), -float("inf"), 0.1], "[null,null,null,0.1]"),
        ({1: True, "é": None}, r'{"1":true,"\u00e9":null}'),
        ([b"text", b"\xff"], '["text",{"base64":"/w=="}]'),
    ],
)
def test_values_become_exact_json(value: object, text: str) -> None:
    assert json_text(value) == text
    json.loads(text, parse_constant=pytest.fail)


def test_repeated_names_are_numbered_and_take_no_others_place() -> None:
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a_2", "a_3"]
    assert unique_names(["a", "a", "a_2", "a_2"]) == ["a", "a_3", "a_2", "a_2_2"]


def test_a_file_is_written_whole_or_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lake.prom"
    for text in ("old\n", "new\n"):
        write_whole(file, text)
        assert file.read_text() == text

    def half(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text.encode(encoding)[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(SetupError, match=r"lake\.prom: cannot write it: No space left on device"):
        write_whole(file, "newest\n")
    assert file.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [file]
