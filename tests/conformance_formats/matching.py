"""Compares a fact of a frame with a case file's notation of it, in any of its forms.

Case files write one number as 4096, "0x1000" or "0x1 producer", bytes as text or hex, a status by
its name, a failover log as pairs or objects. All of these compare by what they mean; the text
behind a number must name the same flags if it names flags at all.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

_NUMBER = re.compile(r"\s*(-?0[xX][0-9a-fA-F]+|-?\d+)\b(.*)", re.DOTALL)
_HEX = re.compile(r"(?:0[xX])?((?:[0-9a-fA-F]{2}[\s:]*)+)")


@dataclass(frozen=True, slots=True)
class Number:
    """An integer with the names that it goes by; ``flags`` if it is a set of bits with names."""

    value: int
    names: tuple[str, ...] = ()
    flags: type[IntFlag] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One of a list of structures: its columns in order, each with all its names (first: shown)."""

    columns: tuple[tuple[tuple[str, ...], Any], ...]


def matches(found: Any, expected: Any) -> bool:
    """Whether ``expected``, a value of a case file, means ``found``."""
    if isinstance(found, Number):
        return _matches_number(found, expected)
    if isinstance(found, bool) or found is None:
        return found is expected
    if isinstance(found, int):
        return _matches_number(Number(found), expected)
    if isinstance(found, float):
        return _matches_float(found, expected)
    if isinstance(found, bytes):
        return _matches_bytes(found, expected)
    if isinstance(found, str):
        return _matches_text(found, expected)
    if isinstance(found, Record):
        return _matches_record(found, expected)
    if isinstance(found, Mapping):
        return _matches_mapping(found, expected)
    if isinstance(found, Sequence):
        return _matches_list(found, expected)
    raise TypeError(f"no comparison for a {type(found).__name__}")


def plain(name: str) -> str:
    """A name without case and punctuation, and without the prefix that all DCP names share."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("dcp")


def _matches_number(found: Number, expected: Any) -> bool:
    if isinstance(expected, bool):
        return found.value == int(expected)
    if isinstance(expected, int):
        return found.value == expected or (expected < 0 and _is_twos_complement(found, expected))
    if isinstance(expected, float):
        return found.value == expected or str(expected) in found.names
    if isinstance(expected, list) and found.flags is not None:
        return all(isinstance(n, str) for n in expected) and _names_flags(found, "|".join(expected))
    if not isinstance(expected, str):
        return False
    leading = _NUMBER.fullmatch(expected)
    if leading is None:
        return _is_named(found, expected) or _is_bare_hex(found.value, expected)
    number, text = int(leading[1], 0) if "x" in leading[1].lower() else int(leading[1]), leading[2]
    if expected in found.names:
        return True
    if found.value != number and not (not text.strip() and _is_bare_hex(found.value, expected)):
        return False
    if found.flags is not None and _all_flag_names(found.flags, text):
        return _names_flags(found, text)
    return True


def _is_twos_complement(found: Number, expected: int) -> bool:
    return any(found.value == expected % 2**bits for bits in (8, 16, 32, 64))


def _is_bare_hex(value: int, text: str) -> bool:
    return re.fullmatch(r"\s*[0-9a-fA-F]+\s*", text) is not None and value == int(text, 16)


def _is_named(found: Number, text: str) -> bool:
    if found.flags is not None and _all_flag_names(found.flags, text):
        return _names_flags(found, text)
    return plain(text) in {plain(name) for name in found.names}


def _flag_words(text: str) -> list[str]:
    return [plain(word) for word in re.split(r"[|,+()\s]+", text) if plain(word)]


def _all_flag_names(flags: type[IntFlag], text: str) -> bool:
    known = {plain(flag) for flag in flags.__members__}
    words = _flag_words(text)
    return bool(words) and set(words) <= known


def _names_flags(found: Number, text: str) -> bool:
    assert found.flags is not None
    members = {plain(name): int(flag) for name, flag in found.flags.__members__.items()}
    total = 0
    for word in _flag_words(text):
        if word not in members:
            return False
        total |= members[word]
    return total == found.value


def _matches_float(found: float, expected: Any) -> bool:
    if isinstance(expected, str):
        leading = re.match(r"\s*~?\s*(\d+(?:\.\d+)?)", expected)
        expected = float(leading[1]) if leading else None
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        return False
    return abs(found - expected) < max(1.0, found * 1e-4)  # rounded up or down


def _matches_bytes(found: bytes, expected: Any) -> bool:
    if expected is None:
        return found == b""
    if isinstance(expected, bool):
        return found == str(expected).lower().encode()
    if isinstance(expected, int | float):
        return found == str(expected).encode()
    if isinstance(expected, dict | list):
        try:
            parsed = json.loads(found)
        except ValueError:
            texts = all(isinstance(word, str) for word in expected)
            return isinstance(expected, list) and texts and found.decode().split() == expected
        return bool(parsed == expected)
    if found in (expected.encode(), expected.encode("latin-1", errors="replace")):
        return True
    as_hex = _HEX.fullmatch(expected.strip())
    return as_hex is not None and bytes.fromhex(re.sub(r"[\s:]", "", as_hex[1])) == found


def _matches_text(found: str, expected: Any) -> bool:
    if found == expected:
        return True
    if isinstance(expected, str):
        leading = _NUMBER.fullmatch(expected)
        expected = int(leading[1], 0) if leading and leading[1].lower().startswith("0x") else None
    if isinstance(expected, bool) or not isinstance(expected, int):
        return False
    return found == str(expected) or _is_bare_hex(expected, found.lower().removeprefix("0x"))


def _matches_record(found: Record, expected: Any) -> bool:
    if isinstance(expected, dict):
        by_name = {name: value for names, value in found.columns for name in names}
        return bool(expected) and all(
            name in by_name and matches(by_name[name], value) for name, value in expected.items()
        )
    values = [value for _, value in found.columns]
    if isinstance(expected, str):
        expected = re.findall(r"0[xX][0-9a-fA-F]+|[0-9a-fA-F]+", expected)
    return isinstance(expected, list) and _all_match(values, expected)


def _matches_mapping(found: Mapping[str, Any], expected: Any) -> bool:
    if isinstance(expected, list):
        return sorted(found) == sorted(expected)
    return (
        isinstance(expected, dict)
        and set(found) == set(expected)
        and all(matches(found[name], value) for name, value in expected.items())
    )


def _matches_list(found: Sequence[Any], expected: Any) -> bool:
    if isinstance(expected, bool):
        return False
    if isinstance(expected, int):
        return len(found) == expected
    if isinstance(expected, dict) and all(isinstance(entry, Record) for entry in found):
        pairs = [[key, value] for key, value in expected.items()]
        return _all_match(found, pairs) or (len(found) == 1 and matches(found[0], expected))
    if isinstance(expected, str):
        expected = expected.split()
    return isinstance(expected, list) and _all_match(found, expected)


def _all_match(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return len(found) == len(expected) and all(map(matches, found, expected))
