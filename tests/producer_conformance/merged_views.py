"""One item of all that connections were shown of it: each was shown a part, in a shape of its own.

A value is stored once, and reshaped for each connection: inflated for those without SNAPPY, without
xattrs for those that do not want them, or left out. What is stored is the whole of it, compressed
if any connection that takes both kinds was shown it so. Of a value that nobody was shown only the
datatype is known: any value of that datatype does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from dcp.errors import FrameError
from dcp.wire.snappy import deflate, inflate
from dcp.wire.vocabulary import Datatype, Opcode
from dcp.wire.xattr import join_xattrs
from tests.producer_conformance.sightings import Item

_SNAPPY: Final = int(Datatype.SNAPPY)
_XATTR: Final = int(Datatype.XATTR)
_JSON: Final = int(Datatype.JSON)
_RESHAPING: Final = _SNAPPY | _XATTR
_UNSEEN_XATTRS: Final = join_xattrs([(b"_unseen", b"1")], b"")


class Quality(NamedTuple):
    """How much of an item a connection is shown, the weightiest first."""

    value: bool = True
    xattrs: bool = True
    deleted_user_xattrs: bool = True
    json: bool = True
    as_stored: bool = True
    snappy: bool = True
    expiry_opcode: bool = True


def merged(views: Iterable[Item]) -> Item:
    """Return one item of all views of it: each field from the connection that was shown most.

    A commit says that it is one to some only.
    """
    ranked = sorted(views, key=lambda item: item.quality)
    stored = _stored(ranked)
    opcode = max(item.opcode for item in ranked)  # an EXPIRATION is a DELETION to most
    delete_time = max(item.delete_time for item in ranked)
    message = next((item.message for item in ranked if item.message is not None), None)
    return replace(stored, opcode=opcode, delete_time=delete_time, message=message)


def _stored(ranked: Sequence[Item]) -> Item:
    best = ranked[-1]
    if not best.quality:
        return best
    without = [item for item in ranked if not _has_value(item)]
    bits = reduce(or_, (item.datatype for item in without), 0)
    xattrs = max((_inflated(item) for item in without), key=len, default=b"") or _UNSEEN_XATTRS
    if not _has_value(best):
        return _of_datatype(replace(best, datatype=0), bits, xattrs, b"")
    body = _inflated(best)
    same = [
        item
        for item in reversed(ranked)  # the last of equal ones counts, as it does above
        if item.quality
        and _has_value(item)
        and not (item.datatype ^ best.datatype) & _XATTR
        and _inflated(item) == body
    ]
    shaped = max((item for item in same if not _is_reshaped(item)), key=_shape, default=best)
    shaped = replace(shaped, datatype=shaped.datatype | best.datatype & _JSON)
    if bits & ~shaped.datatype & _RESHAPING:
        return _of_datatype(shaped, bits | shaped.datatype, xattrs, _inflated(shaped))
    return shaped


def _has_value(item: Item) -> bool:
    return Quality(*item.quality).value if item.quality else bool(item.value)


def _is_reshaped(item: Item) -> bool:
    """Whether the connection gets another value than the stored one: of a deletion, xattrs."""
    quality = Quality(*item.quality)
    is_whole = item.opcode == Opcode.DCP_MUTATION or quality.deleted_user_xattrs
    return bool(item.datatype & _XATTR) and not is_whole


def _shape(item: Item) -> tuple[bool, bool, bool]:
    """How much the connection tells of the shape in which a value is stored."""
    quality = Quality(*item.quality)
    return quality.as_stored and quality.snappy, quality.snappy, quality.json


def _of_datatype(item: Item, datatype: int, xattrs: bytes, value: bytes) -> Item:
    """Return an item with xattrs, a body and compression as connections without values are told.

    From memory they are told of xattrs only, from disk of all bits.
    """
    if datatype & ~item.datatype & _XATTR:
        value = xattrs + value
    if not _has_value(item) and item.opcode == Opcode.DCP_MUTATION and datatype & _RESHAPING:
        value += b"{}" if datatype & _JSON else b"unseen"
    if datatype & _SNAPPY:
        value = deflate(value)
    return replace(item, value=value, datatype=datatype)


def _inflated(item: Item) -> bytes:
    if not item.datatype & _SNAPPY or not item.value:
        return item.value
    try:
        return inflate(item.value)
    except FrameError:  # the recording is damaged there: the comparison will tell
        return item.value
