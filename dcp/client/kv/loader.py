"""Loads documents from a file of JSON lines into a bucket, over KV connections.

A line is ``{"key": …, "value": …}``. With a key field or template the whole line is the document,
and the rule makes its key: ``icao``, or ``airport_{icao}``.
"""

import json
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from dcp.client.kv.kv_client import KvClient
from dcp.errors import DcplakeError
from dcp.wire.json_tree import MOST_TREE_DEPTH, is_deeper, refuse_constant
from dcp.wire.vocabulary import MAX_KEY_BYTES

Progress = Callable[[int, int, int], None]
"""Called with documents loaded, bytes read, bytes of the file."""
_PROGRESS_DOCUMENTS: Final = 512
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_INTEGER_DIGITS: Final = 1000
"""Python refuses to convert much longer integers; keys are shorter."""


class LoadError(DcplakeError):
    """A line that is no document; the message names file and line."""

    exit_code: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule that makes a line's key: a field, a template, or else the field ``key``."""

    key_field: str | None = None
    key_template: str | None = None
    collection: str = ""
    """The documents' collection as ``scope.collection``; empty: the default collection."""

    def __post_init__(self) -> None:
        if self.key_field is not None and self.key_template is not None:
            raise LoadError("key rule: found a key field and a key template, expected one of them")
        if self.key_template is not None and not self._template_fields():
            raise LoadError(
                f"key template: found {self.key_template!r}, expected a field such as {{id}} in it"
            )

        scope, dot, name = self.collection.partition(".")
        if self.collection and not (scope and dot and name and "." not in name):
            raise LoadError(
                f"collection: found {self.collection!r}, expected SCOPE.NAME, for example "
                f"_default.{scope or name or 'airports'}"
            )

    def _template_fields(self) -> list[str]:
        try:
            parts = list(string.Formatter().parse(self.key_template or ""))
        except ValueError as error:
            raise LoadError(f"key template {self.key_template!r}: {error}") from error
        return [name for _, name, _, _ in parts if name]

    def document(self, line: bytes) -> tuple[bytes, bytes]:
        """Return key and value of a line; raise ValueError with the reason."""
        # Some editors put it at the start of a file.
        line = line.removeprefix(_BYTE_ORDER_MARK)
        text = line.decode()
        if is_deeper(line, MOST_TREE_DEPTH):
            raise ValueError(f"found more than {MOST_TREE_DEPTH} levels of JSON, expected fewer")
        tree = _DECODER.decode(text)
        if not isinstance(tree, dict):
            raise ValueError(f"found a {type(tree).__name__}, expected an object")
        if self.key_template is not None:
            fields = {name: _scalar(tree, name) for name in self._template_fields()}
            return _key(self.key_template.format_map(fields)), line
        if self.key_field is not None:
            return _key(_scalar(tree, self.key_field)), line
        if tree.keys() != {"key", "value"}:
            raise ValueError(f"found the fields {sorted(tree)}, expected key and value")
        # The value is stored as written in the line: decoding would change digits of numbers.
        return _key(_scalar(tree, "key")), _field_text(text, "value").encode()


def load_jsonl(
    seeds: Sequence[str],
    path: Path,
    *,
    user: str,
    password: str,
    bucket: str,
    rule: KeyRule | None = None,
    progress: Progress | None = None,
) -> int:
    """Store each line of ``path`` as a document; return their number. Empty lines are skipped.

    Raises:
        LoadError: the file cannot be read, or a line is no document. Earlier lines are stored.
        BucketError: no such bucket or collection.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}") from error
    rule = rule or KeyRule()
    with KvClient(seeds, user, password, bucket, collection=rule.collection) as client:
        return client.set(_documents(path, rule, size, progress))


def _documents(
    path: Path, rule: KeyRule, size: int, progress: Progress | None
) -> Iterator[tuple[bytes, bytes]]:
    loaded = read = 0
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            read += len(raw)
            line = raw.strip()
            if not line:
                continue
            try:
                document = rule.document(line)
            except ValueError as error:
                raise LoadError(f"{path} line {number}: {error}") from error
            yield document
            loaded += 1
            if progress is not None and loaded % _PROGRESS_DOCUMENTS == 0:
                progress(loaded, read, size)
    if progress is not None:
        progress(loaded, size, size)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _INTEGER_DIGITS else float(digits)


_DECODER: Final = json.JSONDecoder(parse_constant=refuse_constant, parse_int=_integer)


def _field_text(text: str, name: str) -> str:
    """Return the JSON text of a field in a valid JSON object; of equal names the last one."""
    found = ""
    index = _after_space(text, _after_space(text, 0) + 1)
    while text[index] != "}":
        if text[index] == ",":
            index = _after_space(text, index + 1)
        field, index = _DECODER.raw_decode(text, index)
        start = _after_space(text, _after_space(text, index) + 1)
        _, end = _DECODER.raw_decode(text, start)
        if field == name:
            found = text[start:end]
        index = _after_space(text, end)
    return found


def _after_space(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    assert match is not None
    return match.end()


def _scalar(tree: dict[str, object], name: str) -> str:
    value = tree.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"key from field {name!r}: found {value!r}, expected a text or a number")
    return str(value)


def _key(text: str) -> bytes:
    key = text.encode()
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"key: found {len(key)} bytes, expected 1 to {MAX_KEY_BYTES}")
    return key
