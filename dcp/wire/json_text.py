"""Checks that bytes are one JSON text in UTF-8 (RFC 8259), without building Python objects.

It accepts what Python's ``json`` accepts, except NaN, Infinity and a byte order mark; numbers may
have any number of digits. Lists and objects nest up to ``MOST_DEPTH``. Memory is bounded for texts
of any size. The ``_steps`` functions yield regularly, so that a server can serve other connections
between two steps.
"""

import codecs
import json
import re
from collections.abc import Generator
from enum import Enum
from functools import cache
from typing import Final

from dcp.wire.json_tree import MOST_TREE_DEPTH, is_deeper, refuse_constant

MOST_DEPTH: Final = 1000
_SHORT_BYTES: Final = 64 * 1024
"""Python's decoder reads so few bytes in the time of one step, into objects of at most 2 MiB."""
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=refuse_constant)
_STEP_BYTES: Final = 64 * 1024
_STEP_TOKENS: Final = 64
_LIST: Final = ord("[")
_OBJECT: Final = ord("{")
_OPENED_BY: Final = {ord("]"): _LIST, ord("}"): _OBJECT}

# No quantifier is possessive: before 3.11.5 Python matches some possessive ones wrongly. Instead no
# two alternatives inside a repetition match the same text, so that nothing is tried in two ways.
_SPACES: Final = " \t\n\r"
_SPACE: Final = rb"[ \t\n\r]*"
_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})'
_PLAIN: Final = rb'[^"\\\x00-\x1f]'
_SHORT_TEXT: Final = rb'"' + _PLAIN + rb"{0,256}(?:" + _ESCAPE + _PLAIN + rb'{0,256}){0,16}"'
_NUMBER: Final = rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+|)(?:[eE][-+]?[0-9]+|)"
_SCALAR: Final = _SHORT_TEXT + rb"|" + _NUMBER + rb"|true|false|null"
_COLON: Final = _SPACE + rb":" + _SPACE
_COMMA: Final = _SPACE + rb"," + _SPACE


def _list_or_object(inner: bytes, most: int) -> bytes:
    """Return a pattern for a scalar, or a list or object of at most ``most`` inner values."""
    value = rb"(?:" + inner + rb")"
    between = _SPACE + rb"(?:," + _SPACE + rb"(?![\]}])|(?=[\]}]))"
    items = rb"(?:" + value + between + rb"){0,%d}" % most
    members = rb"(?:" + _SHORT_TEXT + _COLON + value + between + rb"){0,%d}" % most
    return _SCALAR + rb"|\[" + _SPACE + items + rb"\]|\{" + _SPACE + members + rb"\}"


# A match holds 0.7 KiB for each value until it ends. The counts 32, 8, 4 and 16 (in
# ``_SOME_ITEMS``) limit it to 16,384 values.
_SMALL_DEPTH: Final = 3
_SMALL: Final = _list_or_object(_list_or_object(_list_or_object(_SCALAR, 32), 8), 4)
_VALUE: Final = rb"(?:" + _SMALL + rb")"
_SOME_SCALARS: Final = rb"(?:(?:" + _SCALAR + rb")" + _COMMA + rb"){1,128}"
_SOME_ITEMS: Final = _SOME_SCALARS + rb"|(?:" + _VALUE + _COMMA + rb"){1,16}"
_SOME_MEMBERS: Final = rb"(?:" + _SHORT_TEXT + _COLON + _VALUE + _COMMA + rb"){1,16}"
_OPENING: Final = rb"(?:\[" + _SPACE + rb"){1,64}|\{" + _SPACE
_CLOSING: Final = rb"(?:" + _SPACE + rb"[\]}]){1,64}"
_TEXT_PART: Final = _PLAIN + rb"{0,65536}(?:" + _ESCAPE + _PLAIN + rb"{0,256}){0,64}"


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    # Compiled at first use: all patterns take 0.1 s, and few processes read long texts.
    return re.compile(pattern)


class _Expected(Enum):
    """The kind of token that may come next."""

    VALUE = "a value"
    MEMBER = "a name of an object, with its value"
    ANY = "either, as what is open wants it, or its end"
    MORE = "a comma, an end"


def is_json(value: bytes) -> bool:
    """Return the same as ``is_json_text``; faster for short texts."""
    if len(value) > _SHORT_BYTES:
        return is_json_text(value)
    try:
        text = value.decode().strip(_SPACES)
        # Python's decoder recurses once per level, and may exceed the limit of the caller's stack.
        if is_deeper(value, MOST_TREE_DEPTH):
            return is_json_text(value)
        return _DECODER.raw_decode(text)[1] == len(text)
    except ValueError:
        return False


def is_json_steps(value: bytes) -> Generator[None, None, bool]:
    """Return ``is_json``; yields while it reads a long value."""
    if len(value) <= _SHORT_BYTES:
        return is_json(value)
    return (yield from json_steps(value))


def is_json_text(text: bytes) -> bool:
    steps = json_steps(text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def json_steps(text: bytes) -> Generator[None, None, bool]:
    """Return whether ``text`` is JSON; yields after a limited number of bytes or tokens."""
    # The patterns match bytes, and would accept malformed UTF-8 in strings.
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for first in range(0, len(text), _STEP_BYTES):
            decoder.decode(text[first : first + _STEP_BYTES])
            yield
        decoder.decode(b"", final=True)
        yield from _Reader(text).steps()
    except ValueError:  # UnicodeDecodeError is one
        return False
    return True


class _Reader:
    """The reading position, the open brackets, and the kind of token that may come next."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0
        self._open = bytearray()
        self._expected = _Expected.VALUE

    def steps(self) -> Generator[None, None, None]:
        """Read the text to its end; yields after some tokens.

        Raises ValueError if the text is not JSON.
        """
        self._skip(_SPACE)
        tokens, begun_at = 0, self._at
        while not self._is_whole():
            tokens += 1
            if tokens == _STEP_TOKENS or self._at - begun_at >= _STEP_BYTES:
                tokens, begun_at = 0, self._at
                yield
            match self._expected:
                case _Expected.MORE:
                    self._after_value()
                case _Expected.ANY if self._close():  # an empty list or object
                    self._expected = _Expected.MORE
                case _Expected.ANY:
                    self._expected = self._wanted_inside()
                case _Expected.MEMBER if not self._is_deep and self._skip(_SOME_MEMBERS):
                    pass  # the comma is read: another member must follow
                case _Expected.MEMBER:
                    yield from self._text_steps()
                    self._require(self._skip(_COLON))
                    self._expected = _Expected.VALUE
                case _Expected.VALUE:
                    yield from self._value_steps()

    def _is_whole(self) -> bool:
        if self._expected is not _Expected.MORE or self._open:
            return False
        self._skip(_SPACE)
        self._require(self._at == len(self._text))
        return True

    @property
    def _is_deep(self) -> bool:
        """True if the patterns for small values could exceed ``MOST_DEPTH`` here."""
        return len(self._open) > MOST_DEPTH - _SMALL_DEPTH

    def _wanted_inside(self) -> _Expected:
        return _Expected.MEMBER if self._open[-1] == _OBJECT else _Expected.VALUE

    def _value_steps(self) -> Generator[None, None, None]:
        is_in_list = bool(self._open) and self._open[-1] == _LIST
        if is_in_list and not self._is_deep and self._skip(_SOME_ITEMS):
            return  # the comma is read: another item must follow
        if self._skip(_SCALAR if self._is_deep else _VALUE):
            self._expected = _Expected.MORE
        elif self._open_some():
            self._expected = _Expected.ANY
        else:
            yield from self._text_steps()
            self._expected = _Expected.MORE

    def _text_steps(self) -> Generator[None, None, None]:
        self._require(self._text.startswith(b'"', self._at))
        self._at += 1
        while not self._text.startswith(b'"', self._at):
            before = self._at
            self._skip(_TEXT_PART)
            self._require(self._at > before)
            yield
        self._at += 1

    def _after_value(self) -> None:
        if self._skip(_COMMA):
            self._expected = self._wanted_inside()
        else:
            self._require(self._close())

    def _open_some(self) -> bool:
        found = _compiled(_OPENING).match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        self._open += found[0].translate(None, b" \t\n\r")
        self._require(len(self._open) <= MOST_DEPTH)
        return True

    def _close(self) -> bool:
        found = _compiled(_CLOSING).match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        for end in found[0].translate(None, b" \t\n\r"):
            self._require(bool(self._open) and self._open.pop() == _OPENED_BY[end])
        return True

    def _skip(self, pattern: bytes) -> bool:
        found = _compiled(pattern).match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found is not None

    @staticmethod
    def _require(is_right: bool) -> None:
        if not is_right:
            raise ValueError("JSON: found another text")
