"""Replaces members of objects in whole columns of JSON texts; all other bytes stay unchanged.

The parser reads each text once, checks it, and returns its members. The quotes of all texts give
their places: in JSON without a backslash the quotes begin and end strings in turns. A name that
occurs once in a document is the name of the member that the parser found.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.config.json_paths import FieldName, Step
from dcp.lake.receive.json_editor import Edit
from dcp.wire.binary_column import octets_of, offsets_of, segments

Places = NDArray[np.int64]
Rows = NDArray[np.bool_]
"""A mask."""

_PIECE_BYTES: Final = 2**20  # what is made of a piece stays in the processor's cache
_QUOTE: Final = ord('"')
_COLON: Final = ord(":")
_COMMA: Final = ord(",")
_IS_SPACE: Final = np.isin(np.arange(256), list(b" \t\r\n"))
_SPACES_AT_ONCE: Final = 64
_SPACES: Final = re.compile(rb"[ \t\r\n]*")
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Member:
    names: tuple[bytes, ...]
    """The names on the path to it, as JSON writes them between quotes."""
    value_of: Callable[[Any], Any]
    """Gets the member's value from a parsed document."""
    edit: Edit


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A member of some documents: their rows, and the member's places in their texts."""

    rows: Places
    names: Places
    """The begins of the names."""
    begins: Places
    """The begins of the values."""
    ends: Places
    texts: Sequence[bytes | None]
    """The replacements of the values; None drops the member."""


class ColumnEditor:
    def __init__(self, edits: Mapping[tuple[str, ...], Edit]) -> None:
        """``edits`` are by the names on the path to a member; no member is inside another.

        No name has a character that JSON writes with a backslash.
        """
        document, attributes = _struct(list(edits))
        self._members = tuple(
            _Member(tuple(map(_between_quotes, names)), attrgetter(attributes[names]), edit)
            for names, edit in edits.items()
        )
        self._nothing = document()
        self._decoder = msgspec.json.Decoder(document)

    @classmethod
    def of(cls, edits: Mapping[tuple[Step, ...], Edit]) -> "ColumnEditor | None":
        """Return the editor for some paths; None if a path has a step that is no member."""
        found: dict[tuple[str, ...], Edit] = {}
        for steps, edit in edits.items():
            names = tuple(step.name for step in steps if isinstance(step, FieldName))
            if not steps or len(names) < len(steps):
                return None
            if any(b"\\" in _between_quotes(name) for name in names):
                return None
            if not any(steps[:length] in edits for length in range(len(steps))):
                found[names] = edit
        return cls(found)

    def edited(self, texts: pa.BinaryArray) -> tuple[pa.BinaryArray, Rows]:
        """Return the edited texts, and the mask of unchanged texts that need another editor.

        Those have a backslash, a name twice, or an array on the path to a member, or are no JSON.
        Other texts of the column do not matter for that.
        """
        bounds, octets = offsets_of(texts), octets_of(texts)
        is_left = np.zeros(len(texts), np.bool_)
        cuts: list[Places] = []
        replacements: list[bytes] = []
        sizes = np.diff(bounds)
        start = 0
        while start < len(texts):
            last = int(np.searchsorted(bounds, bounds[start] + _PIECE_BYTES, "right")) - 1
            rows = slice(start, max(last, start + 1))
            base = bounds[start]
            piece = bytes(octets[base : bounds[rows.stop]])
            where, begins, ends, new, is_left[rows] = self._cuts(
                piece, bounds[start : rows.stop + 1] - base
            )
            cuts.append(np.stack([begins, ends], axis=1).ravel() + base)
            replacements += new
            grown = np.fromiter(map(len, new), np.int64, len(new)) - (ends - begins)
            np.add.at(sizes, where + start, grown)
            start = rows.stop
        if not replacements:
            return texts, is_left
        parts = segments(octets, np.concatenate([bounds[:1], *cuts, bounds[-1:]]))
        is_cut = np.arange(len(parts)) % 2 > 0
        edited = pc.replace_with_mask(parts, pa.array(is_cut), pa.array(replacements, pa.binary()))
        ends = offsets_of(edited)[0] + np.concatenate([[0], np.cumsum(sizes)])
        return segments(octets_of(edited), ends), is_left

    def _cuts(
        self, octets: bytes, bounds: Places
    ) -> tuple[Places, Places, Places, list[bytes], Rows]:
        """Return the replacements in ascending order: row, begin, end and text of each.

        The last result is the mask of the rows that need another editor.
        """
        is_left = _with(octets, ord("\\"), bounds)
        documents = self._decoded(octets, bounds, is_left)
        names = _Names(octets, bounds, is_left)
        places, values = [], []
        for member in self._members:
            found = list(map(member.value_of, documents))
            is_there = np.array([value is not msgspec.UNSET for value in found], np.bool_)
            for name in member.names[:-1]:  # the second object of a name may hide the first
                is_left |= names.places(name)[0] > 1
            count, place = names.places(member.names[-1])
            is_left |= (count > 1) & (is_there | (len(member.names) > 1))
            is_left |= is_there & (count == 0)
            values.append(found)
            places.append(np.where(is_there, place, -1))
        members = [
            names.member(place, is_left, found, member.edit)
            for place, found, member in zip(places, values, self._members, strict=True)
        ]
        return *_in_order(names, members), is_left

    def _decoded(self, octets: bytes, bounds: Places, is_left: Rows) -> list[Any]:
        """Parse the texts outside ``is_left``; add texts that are no JSON, or of another shape, to
        it.
        """
        decode, view, documents = self._decoder.decode, memoryview(octets), []
        begin, *ends = bounds.tolist()
        for row, end in enumerate(ends):
            try:
                documents.append(decode(view[begin:end]))
            except (msgspec.DecodeError, RecursionError):
                documents.append(self._nothing)
                is_left[row] = True
            begin = end
        return documents


class _Names:
    """The texts between quotes, in JSON without a backslash."""

    def __init__(self, octets: bytes, bounds: Places, is_left: Rows) -> None:
        self.octets = octets
        self.array = np.frombuffer(octets, np.uint8)
        self._bounds = bounds
        quotes = np.flatnonzero(self.array == _QUOTE)
        if is_left.any():
            is_known = np.ones(len(quotes), np.bool_)
            edges = np.searchsorted(quotes, bounds)
            for row in np.flatnonzero(is_left).tolist():
                is_known[edges[row] : edges[row + 1]] = False
            quotes = quotes[is_known]
        self._opening, self._closing = quotes[::2], quotes[1::2]
        self._lengths = self._closing - self._opening - 1

    def places(self, name: bytes) -> tuple[Places, Places]:
        """Return how often each row has a name, and the index of its last occurrence between
        quotes.
        """
        which = np.flatnonzero(self._lengths == len(name))
        for before, octet in enumerate(reversed(name), start=1):  # names often begin alike
            which = which[self.array[self._closing[which] - before] == octet]
        which = which[self.array[self.behind_spaces(self._closing[which] + 1)] == _COLON]
        rows = np.searchsorted(self._bounds, self._opening[which], "right") - 1
        place = np.zeros(len(self._bounds) - 1, np.int64)
        place[rows] = which
        return np.bincount(rows, minlength=len(place)), place

    def member(self, places: Places, is_left: Rows, values: list[Any], edit: Edit) -> _Found:
        """Edit a member in the rows outside ``is_left`` that have a place for it."""
        rows = np.flatnonzero((places >= 0) & ~is_left)
        at = places[rows]
        begins = self.behind_spaces(self.behind_spaces(self._closing[at] + 1) + 1)
        is_text = self.array[begins] == _QUOTE
        ends = np.empty_like(begins)
        ends[is_text] = self._closing[at[is_text] + 1] + 1
        for number in np.flatnonzero(~is_text).tolist():
            ends[number] = begins[number] + len(bytes(values[rows[number]]))
        octets = self.octets
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        texts = edit([octets[begin:end] for begin, end in spans])
        return _Found(rows, self._opening[at], begins, ends, texts)

    def behind_spaces(self, places: Places) -> Places:
        """Return the first non-space places at or after these."""
        for _ in range(_SPACES_AT_ONCE):
            is_space = _IS_SPACE[self.array[places]]
            if not is_space.any():
                return places
            places = places + is_space
        found = [_SPACES.match(self.octets, place) for place in places.tolist()]
        return np.array([match.end() for match in found if match is not None], np.int64)

    def before_spaces(self, places: Places) -> Places:
        """Return the places after the last non-space before these."""
        for _ in range(_SPACES_AT_ONCE):
            is_space = _IS_SPACE[self.array[places - 1]]
            if not is_space.any():
                return places
            places = places - is_space
        is_other = np.flatnonzero(~_IS_SPACE[self.array])
        return is_other[np.searchsorted(is_other, places) - 1] + 1


def _in_order(
    names: _Names, members: Iterable[_Found]
) -> tuple[Places, Places, Places, list[bytes]]:
    """Return rows, begins, ends and replacements of members, in the order of the texts."""
    found = list(members)
    rows = np.concatenate([each.rows for each in found])
    begins = np.concatenate([each.begins for each in found])
    ends = np.concatenate([each.ends for each in found])
    texts = [text for each in found for text in each.texts]
    order = np.argsort(begins, kind="stable")
    rows, begins, ends = rows[order], begins[order], ends[order]
    if None in texts:
        which = np.flatnonzero(np.array([text is None for text in texts], np.bool_)[order])
        starts = np.concatenate([each.names for each in found])[order[which]]
        begins[which], ends[which] = _with_commas(names, starts, ends[which])
    return rows, begins, ends, [texts[number] or b"" for number in order.tolist()]


def _with_commas(names: _Names, begins: Places, ends: Places) -> tuple[Places, Places]:
    """Return the places to cut for dropped members, given in order: each with one comma.

    It is the comma after the member. If all members after it are dropped, it is the comma before
    it.
    """
    array = names.array
    after = names.behind_spaces(ends)
    has_comma = array[after] == _COMMA
    follows = np.where(has_comma, names.behind_spaces(after + has_comma), -1)
    is_last = ~has_comma
    is_next_dropped = follows[:-1] == begins[1:]
    while (more := is_next_dropped & is_last[1:] & ~is_last[:-1]).any():
        is_last[:-1] |= more
    before = names.before_spaces(begins)
    before = before - (array[before - 1] == _COMMA)
    return np.where(is_last, before, begins), np.where(is_last, ends, follows)


def _between_quotes(name: str) -> bytes:
    return _ENCODER.encode(name)[1:-1]


def _with(octets: bytes, octet: int, bounds: Places) -> Rows:
    """Return the mask of texts that have an octet."""
    found = np.zeros(len(bounds) - 1, np.bool_)
    if octet in octets:
        places = np.flatnonzero(np.frombuffer(octets, np.uint8) == octet)
        found[np.searchsorted(bounds, places, "right") - 1] = True
    return found


def _struct(paths: list[tuple[str, ...]]) -> tuple[Any, dict[tuple[str, ...], str]]:
    """Return the type that decodes members and skips all others, and the attribute of each path."""
    fields: list[tuple[str, Any, Any]] = []
    attributes: dict[tuple[str, ...], str] = {}
    renamed: dict[str, str] = {}
    for number, name in enumerate(dict.fromkeys(path[0] for path in paths)):
        attribute = f"m{number}"
        renamed[attribute] = name
        below = [path[1:] for path in paths if path[0] == name]
        if below == [()]:
            fields.append((attribute, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET))
            attributes[name,] = attribute
        else:
            inner, inside = _struct(below)
            fields.append((attribute, inner, inner()))
            attributes |= {(name, *path): f"{attribute}.{each}" for path, each in inside.items()}
    # No value can be part of a cycle, so the collector of garbage need not know of them.
    struct = msgspec.defstruct("Members", fields, rename=renamed, frozen=True, gc=False)
    return struct, attributes
