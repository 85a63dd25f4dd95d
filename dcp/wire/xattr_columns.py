"""Splits columns of values into xattrs and bodies, without an object per value.

It reads the first pairs of all values together, then the second pairs, and so on. It leaves rare
values to ``split_xattrs``: malformed sections, names that are not plain ASCII, values that are not
JSON, more than 8 pairs or 1 MiB.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.wire.binary_column import octets_of, offsets_of, picked, segments
from dcp.wire.framing import gather
from dcp.wire.json_text import is_json
from dcp.wire.xattr import MAX_NAME_BYTES, MAX_SYSTEM_BYTES, TRANSACTION_NAME

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MOST_PAIRS: Final = 8
_LENGTH: Final = np.dtype(">u4")
_NAME: Final = np.dtype([("octets", "u1", MAX_NAME_BYTES + 1)])
"""A name, its NUL, and perhaps later bytes."""
_TRANSACTION: Final = np.frombuffer(
    TRANSACTION_NAME.encode().ljust(MAX_NAME_BYTES + 1, b"\0"), np.uint8
)
_PLACES: Final = np.arange(MAX_NAME_BYTES + 1)
_IS_PLAIN: Final = np.isin(np.arange(256), sorted({*range(0x20, 0x7F)} - {*b'"\\'}))
"""Bytes that stand for themselves in a JSON string."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """At most one pair per value, in the order of the values."""

    rows: Rows
    names: NDArray[np.uint8]
    """Padded with zeros to 16 bytes."""
    name_at: Rows
    value_at: Rows
    value_ends: Rows

    @property
    def are_hidden(self) -> Mask:
        is_system = self.names[:, 0] == ord("_")
        are_hidden: Mask = is_system | (self.names == _TRANSACTION).all(axis=1)
        return are_hidden

    def of(self, is_chosen: Mask) -> "_Pairs":
        return _Pairs(
            self.rows[is_chosen],
            self.names[is_chosen],
            self.name_at[is_chosen],
            self.value_at[is_chosen],
            self.value_ends[is_chosen],
        )


def split_column(
    values: pa.BinaryArray, *, system_xattrs: bool = True
) -> tuple[pa.BinaryArray, pa.StringArray]:
    """Split values that all begin with an xattr section: into bodies, and xattrs as JSON objects.

    Both are null if the value was not split. Without ``system_xattrs`` the objects lack hidden
    xattrs (`dcp.wire.xattr.is_hidden`), and an object that only has such is null.
    """
    sections = _Sections(values)
    pairs = sections.read()
    if not system_xattrs:
        pairs = [each.of(~each.are_hidden) for each in pairs]
    texts = sections.texts(pairs)
    return sections.bodies(), texts


class _Sections:
    """The xattr sections of a column; a value that fails a check stays unsplit."""

    def __init__(self, values: pa.BinaryArray) -> None:
        self._buffer = octets_of(values)
        self._octets = np.frombuffer(self._buffer, np.uint8)
        offsets = offsets_of(values)
        self._starts, self._value_ends = offsets[:-1], offsets[1:]
        self._rows = len(values)
        self._is_split = self._value_ends - self._starts >= _LENGTH.itemsize
        at = self._starts + _LENGTH.itemsize
        self._ends = at + self._gather(self._starts, _LENGTH)
        self._is_split &= self._ends <= self._value_ends
        # In a longer section the system's and the user's xattrs have different limits.
        self._is_split &= self._ends - at <= MAX_SYSTEM_BYTES
        self._is_empty = self._ends == at
        self._at = at

    def read(self) -> list[_Pairs]:
        """Return the first pairs of all sections, then the second pairs, and so on."""
        found: list[_Pairs] = []
        names: list[NDArray[np.uint64]] = []
        while len(rows := np.flatnonzero(self._is_split & (self._at < self._ends))):
            if len(found) == _MOST_PAIRS:
                self._is_split[rows] = False
                break
            pairs = self._next_pairs(rows)
            # A padded name is two integers, which makes comparing names cheap. A section that
            # repeats a name is malformed.
            words = np.zeros((self._rows, 2), np.uint64)
            words[pairs.rows] = pairs.names.view(np.uint64)
            for others in names:
                # Zeros stand for a value without such a pair.
                is_same = (words == others).all(axis=1) & words.any(axis=1)
                self._is_split &= ~is_same
            found.append(pairs)
            names.append(words)
        return [each.of(self._is_split[each.rows]) for each in found]

    def _next_pairs(self, rows: Rows) -> _Pairs:
        name_at = self._at[rows] + _LENGTH.itemsize
        pair_ends = name_at + self._gather(self._at[rows], _LENGTH)
        names = self._gather(name_at, _NAME)["octets"]
        name_bytes = np.argmin(names, axis=1)
        is_name = name_bytes[:, None] > _PLACES
        value_at = name_at + name_bytes + 1
        # A name needs a NUL within 16 bytes, and the pair must end with one. Near the buffer's end
        # ``_gather`` returns other bytes, so such a pair is left to ``split_xattrs``.
        is_whole = pair_ends <= self._ends[rows]
        is_whole &= name_at <= len(self._octets) - _NAME.itemsize
        is_whole &= (names.min(axis=1) == 0) & (name_bytes > 0) & (value_at < pair_ends)
        is_whole &= (_IS_PLAIN[names] | ~is_name).all(axis=1)
        last = np.minimum(pair_ends, len(self._octets)) - 1
        is_whole &= self._octets[last] == 0
        self._is_split[rows] = is_whole
        self._at[rows] = pair_ends
        pairs = _Pairs(rows, names * is_name, name_at, value_at, pair_ends - 1)
        return pairs.of(is_whole)

    def texts(self, pairs: list[_Pairs]) -> pa.StringArray:
        members = [self._members(each) for each in pairs if len(each.rows)]
        rows = np.concatenate([each.rows for each in pairs] or [np.empty(0, np.int64)])
        counts = np.bincount(rows, minlength=self._rows)
        texts = pa.repeat(pa.scalar(b""), self._rows)
        if members:
            ends = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
            # A stable sort keeps the order of each value's pairs.
            by_row = pa.concat_arrays(members).take(pa.array(np.argsort(rows, kind="stable")))
            texts = pc.binary_join(pa.ListArray.from_arrays(ends, by_row), b",")
        is_shown = self._is_split & (self._is_empty | (counts > 0))
        objects = pc.binary_join_element_wise(b"{", texts, b"}", b"")
        return pc.if_else(pa.array(is_shown), objects, None).cast(pa.string())

    def _members(self, pairs: _Pairs) -> pa.BinaryArray:
        """Return each pair, at least one, as a member of a JSON object."""
        columns = pairs.name_at, pairs.value_at - 1, pairs.value_at, pairs.value_ends
        parts = segments(self._buffer, np.stack(columns, axis=1))
        first = np.arange(0, len(parts), 4)
        names, values = picked(parts, first), picked(parts, first + 2)
        is_good = np.fromiter(map(is_json, values.to_pylist()), np.bool_, len(values))
        self._is_split[pairs.rows] &= is_good
        return pc.binary_join_element_wise(b'"', names, b'":', values, b"")

    def bodies(self) -> pa.BinaryArray:
        """Return the bytes after each section; a single one is not copied."""
        starts = np.where(self._is_split, self._ends, self._value_ends)
        parts = segments(self._buffer, np.stack([starts, self._value_ends], axis=1))
        if self._rows == 1 and self._is_split.all():
            return parts
        indices = np.arange(0, 2 * self._rows, 2)
        if self._is_split.all():
            return picked(parts, indices)
        # The mask makes the bodies of unsplit values null.
        return parts.take(pa.array(indices, mask=~self._is_split))

    def _gather(self, positions: Rows, layout: np.dtype[Any]) -> NDArray[Any]:
        """Return the records at ``positions``; arbitrary ones for positions too near to the
        buffer's end.
        """
        last = len(self._octets) - layout.itemsize
        if last < 0:
            return np.zeros(len(positions), layout)
        return gather(self._buffer, np.clip(positions, 0, last), layout)
