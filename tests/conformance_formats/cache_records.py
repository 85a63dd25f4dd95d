"""Encodes and decodes the records in a DCP_CACHE_TRANSFER message: cached documents, in no order.

Source: kv_engine ``docs/dcp/documentation/cache-transfer.md``,
``include/mcbp/protocol/dcp_cache_transfer_buffer.h``.
"""

from dataclasses import dataclass
from struct import Struct

from dcp.errors import FrameError

_HEADER = Struct(">QQQIIIHBB")


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """One document; ``key`` as on the wire, ``value`` may be empty with any datatype."""

    cas: int
    by_seqno: int
    rev_seqno: int
    flags: int
    expiry: int
    datatype: int
    cache_hint: int
    key: bytes
    value: bytes


def decode_cache_records(value: bytes) -> tuple[CacheRecord, ...]:
    """Return the records that stand back to back in a message's value.

    Raises:
        FrameError: a record that is cut off.
    """
    records: list[CacheRecord] = []
    position = 0
    while position < len(value):
        key_at = position + _HEADER.size
        if key_at > len(value):
            raise _cut_off(len(records), len(value) - position, _HEADER.size)
        cas, seqno, rev, value_bytes, flags, expiry, key_bytes, datatype, hint = (
            _HEADER.unpack_from(value, position)
        )
        value_at = key_at + key_bytes
        end = value_at + value_bytes
        if end > len(value):
            raise _cut_off(len(records), len(value) - position, end - position)
        key, document = value[key_at:value_at], value[value_at:end]
        records.append(CacheRecord(cas, seqno, rev, flags, expiry, datatype, hint, key, document))
        position = end
    return tuple(records)


def _cut_off(index: int, found: int, expected: int) -> FrameError:
    return FrameError(
        f"cache transfer record {index}: found {found} bytes, expected {expected} or more"
    )
