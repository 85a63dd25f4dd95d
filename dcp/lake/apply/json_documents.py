"""Parses JSON documents one by one: this defines the content of a document.

A document is an RFC 8259 object in UTF-8. If a name comes twice, its last value counts. Half of a
surrogate pair is read as U+FFFD. Numbers stay ``bytes``, so that none loses a digit.
"""

import json
import re
from datetime import date
from json.encoder import encode_basestring
from typing import Any, Final

from dcp.wire.json_tree import is_deeper, refuse_constant

_WHITESPACE: Final = b" \t\r\n"

MOST_NESTED: Final = 400
"""The most nested objects and arrays of a document: the code walks values by recursion."""

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}")
_ZONE: Final = r"(?:[Zz]|([+-])([0-9]{2})(?::?([0-9]{2}))?)?"
_EXTENDED: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    rf"(?:[Tt ]([0-9]{{2}})(?::([0-9]{{2}})(?::([0-9]{{2}})(?:\.([0-9]{{1,9}}))?)?)?{_ZONE})?"
)
_BASIC: Final = re.compile(
    r"([0-9]{8})"
    rf"(?:[Tt]([0-9]{{2}})(?:([0-9]{{2}})(?:([0-9]{{2}})(?:\.([0-9]{{1,9}}))?)?)?{_ZONE})?"
)
"""The texts that a date or time column takes, if the calendar has them (`day_of`)."""

_PARTIAL: Final = re.compile(r"[0-9]{4}(?:-[0-9]{2}(?:-[0-9]{2})?)?")

FIRST_SECOND: Final = -62_135_596_800
LAST_SECOND: Final = 253_402_300_799
"""The years 1 to 9999, in seconds since 1970: a Spark timestamp holds no others."""

DAY_SECONDS: Final = 86_400
_UNIX_EPOCH: Final = date(1970, 1, 1)

_ESCAPES: Final = re.compile(
    r"\\\\"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""An escaped backslash, a surrogate pair, or half of a pair. Plain UTF-8 has no surrogates."""


def parse_object(document: bytes) -> dict[str, Any] | None:
    if not looks_like_object(document):
        return None
    try:
        text = document.decode()
        if rb"\ud" in document or rb"\uD" in document:
            text = _ESCAPES.sub(
                lambda each: r"\ufffd" if len(each[0]) == len(r"\ud83d") else each[0], text
            )
        content = json.loads(
            text,
            parse_int=str.encode,
            parse_float=str.encode,
            parse_constant=refuse_constant,
        )
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def looks_like_object(document: bytes) -> bool:
    """Return whether a document has an object's first and last byte, and is not nested too deep."""
    text = document.strip(_WHITESPACE)
    return text[:1] == b"{" and text[-1:] == b"}" and not is_deeper(text, MOST_NESTED)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    match value:
        case bytes():
            return value.decode()
        case str():
            return encode_basestring(value)
        case list():
            return f"[{','.join(map(_json, value))}]"
        case dict():
            fields = (f"{encode_basestring(name)}:{_json(each)}" for name, each in value.items())
            return f"{{{','.join(fields)}}}"
    return json.dumps(value)


def day_of(text: str) -> date:
    """Raise ValueError if the calendar has no such day."""
    return date.fromisoformat(whole_match(_DATE, text)[0])


def partial_day_of(text: str) -> str:
    """Return the text if it is a year, month or day of the calendar; else raise ValueError."""
    date.fromisoformat(f"{whole_match(_PARTIAL, text)[0]}-01-01"[: len("2026-01-31")])
    return text


def micros_of(text: str) -> int:
    """Return a time in microseconds since 1970.

    It raises ValueError if the calendar or clock has no such time, or if no column can hold it.
    """
    found = _BASIC.fullmatch(text) or whole_match(_EXTENDED, text)
    hour, minute, second, zone_hour, zone_minute = (
        int(found[group] or 0) for group in (2, 3, 4, 7, 8)
    )
    days = (date.fromisoformat(found[1]) - _UNIX_EPOCH).days
    ahead = (zone_hour * 60 + zone_minute) * (-60 if found[6] == "-" else 60)
    seconds = days * DAY_SECONDS + hour * 3600 + minute * 60 + second - ahead
    is_clock = max(hour, zone_hour) <= 23 and max(minute, second, zone_minute) <= 59
    if not is_clock or not FIRST_SECOND <= seconds <= LAST_SECOND:
        raise ValueError("a time beyond the type")
    return seconds * 1_000_000 + int((found[5] or "").ljust(6, "0")[:6])


def whole_match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError("another text")
    return found


def holds_value(value: Any) -> bool:
    """Return whether a value holds anything but null, at any depth."""
    if isinstance(value, dict):
        return any(map(holds_value, value.values()))
    return any(map(holds_value, value)) if isinstance(value, list) else value is not None
