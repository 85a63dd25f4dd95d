r"""Replaces members of objects in whole columns of JSON texts; all other bytes stay unchanged.

The parser reads each text once, checks it, and returns its members. A search of the octets counts
and finds the members of a name. It looks for the name between two quotes, behind no backslash and
before a colon. It misses none, and finds nothing else, for two reasons:

- An edit's name has no quote, no backslash and none of ``{}[],:``. Two strings of a text have one
  of these between them. So the two quotes open and close one string.
- Such a name may also be spelled with the escapes ``\u`` or ``\/``. A text in which the next quote
  behind one of these ends a name goes to another editor.

If a text has one member of a name, it is the member that the parser found.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.config.json_paths import FieldName, Step
from dcp.lake.receive.arrow_columns import Mask, byte_lengths, mask_of
from dcp.lake.receive.json_editor import Edit
from dcp.wire.binary_column import octets_of, offsets_of, segments

Offsets = NDArray[np.int64]
Octets = NDArray[np.uint8]

_BLOCK_BYTES: Final = 2**18  # what is made of a block stays in the processor's cache
_ROWS_AT_ONCE: Final = 256
_WORD_BYTES: Final = 8
_NOWHERE: Final = np.zeros(0, np.int64)
_QUOTE: Final = ord('"')
_COLON: Final = ord(":")
_COMMA: Final = ord(",")
_BACKSLASH: Final = ord("\\")
_BETWEEN_STRINGS: Final = frozenset(b"{}[],:")
_IS_SPACE: Final = np.isin(np.arange(256), list(b" \t\r\n"))
_SPELLS: Final = np.isin(np.arange(256), list(b"u/"))
"""By octet: whether it makes an escape of a character that JSON also writes without one."""
_SPACES_AT_ONCE: Final = 64
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class _Member:
    names: tuple[bytes, ...]
    """The names on the path to it, as JSON writes them between quotes."""
    value_of: Callable[[Any], Any]
    """Gets the member's value from a parsed document, an empty one if it is not there."""
    edit: Edit


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A member of some documents: their rows, and the member's offsets in their texts."""

    rows: Offsets
    names: Offsets
    """The begins of the names."""
    begins: Offsets
    """The begins of the values."""
    ends: Offsets
    texts: pa.BinaryArray
    """The replacements of the values; null drops the member."""


class ColumnEditor:
    def __init__(self, edits: Mapping[tuple[str, ...], Edit]) -> None:
        """``edits`` are by the names on the path to a member; no member is inside another.

        No name has a character that JSON writes with a backslash, nor one of ``{}[],:``.
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
        """Return the editor for some paths.

        There is none if a path has a step that is no member, or a name that `ColumnEditor` refuses.
        """
        found: dict[tuple[str, ...], Edit] = {}
        for steps, edit in edits.items():
            names = tuple(step.name for step in steps if isinstance(step, FieldName))
            if not steps or len(names) < len(steps) or not all(map(_is_plain, names)):
                return None
            if not any(steps[:length] in edits for length in range(len(steps))):
                found[names] = edit
        return cls(found)

    def edited(self, texts: pa.BinaryArray) -> tuple[pa.BinaryArray, Mask]:
        """Return the edited texts, and the mask of unchanged texts that need another editor.

        Those have a name with an escape, a name twice, or an array on the path to a member, or are
        no JSON. Other texts of the column do not matter for that.
        """
        is_left = np.zeros(len(texts), np.bool_)
        values = self._values(texts, is_left)
        found = _Texts(texts, is_left)
        rows, begins, ends, new = self._cuts(found, values)
        if not len(rows):
            return texts, is_left
        bounds = found.bounds
        sizes = np.diff(bounds)
        np.add.at(sizes, rows, byte_lengths(new) - (ends - begins))
        cuts = np.stack([begins, ends], axis=1).ravel()
        parts = segments(octets_of(texts), np.concatenate([bounds[:1], cuts, bounds[-1:]]))
        is_cut = np.zeros(len(parts), np.bool_)
        is_cut[1::2] = True
        # This kernel takes the memory of its result at once; replace_with_mask lets it grow.
        edited = pc.if_else(pa.array(is_cut), _with_empty(new), parts)
        ends = offsets_of(edited)[0] + np.concatenate([[0], np.cumsum(sizes)])
        return segments(octets_of(edited), ends), is_left

    def _values(self, texts: pa.BinaryArray, is_left: Mask) -> list[list[bytes]]:
        """Return each member's value in each text, empty if it is not there.

        Texts that are no JSON, or of another shape, are added to ``is_left``.
        """
        decode = self._decoder.decode
        values: list[list[bytes]] = [[] for _ in self._members]
        for start in range(0, len(texts), _ROWS_AT_ONCE):
            documents = []
            for row, text in enumerate(texts[start : start + _ROWS_AT_ONCE].to_pylist(), start):
                try:
                    documents.append(decode(text))
                except (msgspec.DecodeError, RecursionError):
                    documents.append(self._nothing)
                    is_left[row] = True
            for member, found in zip(self._members, values, strict=True):
                found.extend(map(bytes, map(member.value_of, documents)))
        return values

    def _cuts(
        self, texts: "_Texts", values: list[list[bytes]]
    ) -> tuple[Offsets, Offsets, Offsets, pa.BinaryArray]:
        """Return the replacements in ascending order: row, begin, end and text of each."""
        is_left = texts.is_left
        named = texts.named([member.names[-1] for member in self._members])
        texts.leave_escaped_names()
        sizes = []
        for member, found, (count, _) in zip(self._members, values, named, strict=True):
            sizes.append(np.fromiter(map(len, found), np.int64, len(found)))
            is_there = sizes[-1] > 0
            is_left |= (count > 1) & (is_there | (len(member.names) > 1))
            is_left |= is_there & (count == 0)
            is_elsewhere = ~is_there & (count > 0)
            if len(member.names) > 1 and is_elsewhere.any():
                # The second object of a name hides the first.
                for hiding, _ in texts.named(member.names[:-1]):
                    is_left |= is_elsewhere & (hiding > 1)
        return _in_order(
            texts,
            [
                texts.member(member, offset, size, found)
                for member, (_, offset), size, found in zip(
                    self._members, named, sizes, values, strict=True
                )
            ],
        )


class _Texts:
    """The texts of a column, and what is found in them."""

    def __init__(self, texts: pa.BinaryArray, is_left: Mask) -> None:
        self.array = np.frombuffer(octets_of(texts), np.uint8)
        self.bounds = offsets_of(texts)
        self.is_left = is_left
        """The texts that need another editor. The first of them are no JSON."""
        self._is_json = ~is_left if is_left.any() else None
        """None: all are."""

    def _in_json(self, offsets: Offsets) -> tuple[Offsets, Offsets]:
        """Return the offsets in texts that were parsed, and their rows."""
        rows = np.searchsorted(self.bounds, offsets, "right") - 1
        if self._is_json is not None:
            is_json = self._is_json[rows]
            return offsets[is_json], rows[is_json]
        return offsets, rows

    def _blocks(self, more: int = 0) -> Iterator[tuple[int, Octets]]:
        """Yield the octets of all texts in blocks with so many octets of the next, and the offset
        of each block.
        """
        begin, end = int(self.bounds[0]), int(self.bounds[-1])
        for offset in range(begin, end, _BLOCK_BYTES):
            yield offset, self.array[offset : min(offset + _BLOCK_BYTES + more, end)]

    def leave_escaped_names(self) -> None:
        r"""Add the texts with an escape ``\u`` or ``\/`` in a name to ``is_left``.

        A name that has a quote behind the escape does not matter, as no edit's name has one.
        """
        array, masks = self.array, np.empty(_BLOCK_BYTES, np.bool_)
        waiting = np.zeros(0, np.int64)  # in a string that a later block closes
        for begin, octets in self._blocks():
            is_backslash = np.equal(octets, _BACKSLASH, out=masks[: len(octets)])
            offsets = waiting
            if is_backslash.any():
                offsets = self._in_json(np.flatnonzero(is_backslash) + begin)[0]
                offsets = np.concatenate([waiting, offsets[_SPELLS[array[offsets + 1]]]])
            if len(offsets):
                quotes = np.flatnonzero(octets == _QUOTE) + begin
                which = np.searchsorted(quotes, offsets)
                is_closed = which < len(quotes)
                closing, rows = self._in_json(quotes[which[is_closed]])
                is_name = array[self.behind_spaces(closing + 1)] == _COLON
                self.is_left[rows[is_name]] = True
                waiting = offsets[~is_closed][-1:]

    def named(self, names: Sequence[bytes]) -> list[tuple[Offsets, Offsets]]:
        """Return for each name how many members each row has of it, and where the last one's name
        begins.
        """
        most = max(map(len, names)) + 1
        masks = np.empty((3, -(-(_BLOCK_BYTES + most) // _WORD_BYTES) * _WORD_BYTES), np.bool_)
        found: list[list[Offsets]] = [[] for _ in names]
        for begin, octets in self._blocks(most):
            is_quote = np.equal(octets, _QUOTE, out=masks[0][: len(octets)])
            for name, offsets in zip(names, found, strict=True):
                size = len(name) + 1
                count = min(len(octets) - size, _BLOCK_BYTES)
                if count <= 0:
                    continue
                is_found = np.logical_and(
                    is_quote[:count], is_quote[size : size + count], out=masks[1][:count]
                )
                is_found &= np.equal(octets[1 : 1 + count], (name + b'"')[0], out=masks[2][:count])
                masks[1][count : count + _WORD_BYTES] = False
                offsets.append(_true(masks[1][: -(-count // _WORD_BYTES) * _WORD_BYTES]) + begin)
        return [
            self._members(name, np.concatenate([*offsets, _NOWHERE]))
            for name, offsets in zip(names, found, strict=True)
        ]

    def _members(self, name: bytes, offsets: Offsets) -> tuple[Offsets, Offsets]:
        """Return what `named` does, by the offsets where the name may be."""
        array, size = self.array, len(name) + 1
        for ahead in range(size - 1, 1, -1):  # names often begin alike
            offsets = offsets[array[offsets + ahead] == name[ahead - 1]]
        offsets, rows = self._in_json(offsets)
        is_name = array[self.behind_spaces(offsets + size + 1)] == _COLON
        is_name &= array[offsets - 1] != _BACKSLASH
        if not is_name.all():
            offsets, rows = offsets[is_name], rows[is_name]
        offset = np.zeros(len(self.is_left), np.int64)
        offset[rows] = offsets
        return np.bincount(rows, minlength=len(offset)), offset

    def member(
        self, member: _Member, names: Offsets, sizes: Offsets, values: list[bytes]
    ) -> _Found:
        """Edit a member in the rows outside ``is_left`` that have it.

        Args:
            member: the member.
            names: the begin of its name in each row.
            sizes: the size of its value in each row, 0 if it is not there.
            values: its value in each row.
        """
        rows = np.flatnonzero((sizes > 0) & ~self.is_left)
        if len(rows) < len(values):
            values = [values[row] for row in rows.tolist()]
        names = names[rows]
        begins = self.behind_spaces(names + len(member.names[-1]) + 2) + 1
        begins = self.behind_spaces(begins)
        texts = pa.array(member.edit(values), pa.binary())
        return _Found(rows, names, begins, begins + sizes[rows], texts)

    def behind_spaces(self, offsets: Offsets) -> Offsets:
        """Return the offsets of the first non-spaces at or after these."""
        for _ in range(_SPACES_AT_ONCE):
            is_space = _IS_SPACE[self.array[offsets]]
            if not is_space.any():
                return offsets
            offsets = offsets + is_space
        is_other = np.flatnonzero(~_IS_SPACE[self.array])
        return is_other[np.searchsorted(is_other, offsets)]

    def before_spaces(self, offsets: Offsets) -> Offsets:
        """Return the offsets after the last non-space before these."""
        for _ in range(_SPACES_AT_ONCE):
            is_space = _IS_SPACE[self.array[offsets - 1]]
            if not is_space.any():
                return offsets
            offsets = offsets - is_space
        is_other = np.flatnonzero(~_IS_SPACE[self.array])
        return is_other[np.searchsorted(is_other, offsets) - 1] + 1


def _in_order(
    texts: _Texts, members: Iterable[_Found]
) -> tuple[Offsets, Offsets, Offsets, pa.BinaryArray]:
    """Return rows, begins, ends and replacements of members, in the order of the texts."""
    found = list(members)
    rows = np.concatenate([each.rows for each in found])
    begins = np.concatenate([each.begins for each in found])
    ends = np.concatenate([each.ends for each in found])
    replacements = pa.concat_arrays([each.texts for each in found])
    order = np.argsort(begins, kind="stable")
    rows, begins, ends = rows[order], begins[order], ends[order]
    replacements = replacements.take(pa.array(order))
    if replacements.null_count:
        which = np.flatnonzero(mask_of(replacements.is_null()))
        starts = np.concatenate([each.names for each in found])[order[which]]
        begins[which], ends[which] = _with_commas(texts, starts, ends[which])
        replacements = replacements.fill_null(b"")
    return rows, begins, ends, replacements


def _with_commas(texts: _Texts, begins: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    """Return the offsets to cut for dropped members, given in order: each with one comma.

    It is the comma after the member. If all members after it are dropped, it is the comma before
    it.
    """
    array = texts.array
    after = texts.behind_spaces(ends)
    has_comma = array[after] == _COMMA
    follows = np.where(has_comma, texts.behind_spaces(after + has_comma), -1)
    is_last = ~has_comma
    is_next_dropped = follows[:-1] == begins[1:]
    while (more := is_next_dropped & is_last[1:] & ~is_last[:-1]).any():
        is_last[:-1] |= more
    before = texts.before_spaces(begins)
    before = before - (array[before - 1] == _COMMA)
    return np.where(is_last, before, begins), np.where(is_last, ends, follows)


def _between_quotes(name: str) -> bytes:
    return _ENCODER.encode(name)[1:-1]


def _is_plain(name: str) -> bool:
    """Return whether `ColumnEditor` takes a name."""
    return _BETWEEN_STRINGS.isdisjoint(octets := _between_quotes(name)) and _BACKSLASH not in octets


def _true(mask: Mask) -> Offsets:
    """Return the offsets of the true values, of which there are few.

    The size of the mask must be a multiple of that of a word.
    """
    words = mask.view(np.uint64)
    found = np.flatnonzero(words != 0)
    inside = np.flatnonzero(words[found].view(np.bool_))
    offsets: Offsets = found[inside // _WORD_BYTES] * _WORD_BYTES + inside % _WORD_BYTES
    return offsets


def _with_empty(texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return an empty text before each text, and one behind all."""
    bounds = offsets_of(texts)
    return segments(octets_of(texts), np.repeat(bounds, 2))


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
            fields.append((attribute, msgspec.Raw, msgspec.Raw()))
            attributes[name,] = attribute
        else:
            inner, inside = _struct(below)
            fields.append((attribute, inner, inner()))
            attributes |= {(name, *path): f"{attribute}.{each}" for path, each in inside.items()}
    # No value can be part of a cycle, so the collector of garbage need not know of them.
    struct = msgspec.defstruct("Members", fields, rename=renamed, frozen=True, gc=False)
    return struct, attributes
