"""Encodes documents in bulk: all frames of a vbucket at once, into one buffer.

Benchmarks need millions of documents that cost the producer next to nothing to make or to send.
Keys and values are deterministic and of equal length, so all frames of a segment have one length
and are rows of a matrix that numpy fills column by column. The frames are those of a connection
with Collections; for other connections single documents are taken out of them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dcp.producer.model.item_layouts import CAS_AT, SEQNO_AT
from dcp.producer.model.versions import Content, Flavour, Version
from dcp.producer.storage.stored_items import version_of
from dcp.types import vbucket_of
from dcp.wire.vocabulary import Datatype

_DIGITS: Final = 10
_LEAST_VALUE: Final = b'{"id":"' + b"0" * _DIGITS + b'","pad":""}'
_ALPHABET: Final = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8
)


@dataclass(frozen=True, slots=True)
class PreloadSettings:
    """``count`` documents of ``value_bytes`` of JSON, keyed ``<prefix><10 digits>``."""

    count: int
    value_bytes: int
    prefix: bytes = b"doc:"
    seed: int = 0

    def __post_init__(self) -> None:
        """Reject what does not fit the key's digits or the smallest document."""
        if not 0 < self.count < 10**_DIGITS:
            raise ValueError(f"preload count: found {self.count}, expected 1 to {10**_DIGITS - 1}")
        if self.value_bytes < len(_LEAST_VALUE):
            raise ValueError(
                f"preload value: found {self.value_bytes} bytes, "
                f"expected at least {len(_LEAST_VALUE)}"
            )


class PreloadedSegment:
    """One vbucket's preloaded documents; row i has seqno ``first_seqno + i``."""

    def __init__(
        self,
        vbucket: int,
        ids: npt.NDArray[np.int64],
        settings: PreloadSettings,
        *,
        first_seqno: int,
        first_cas: int,
    ) -> None:
        self.vbucket = vbucket
        self.first_seqno = first_seqno
        self._ids = ids
        self._prefix = settings.prefix
        self._key_bytes = len(settings.prefix) + _DIGITS
        self.frames = _encode(vbucket, ids, settings, first_seqno, first_cas)

    def __len__(self) -> int:
        return len(self._ids)

    def seqno_of(self, row: int) -> int:
        """Return the seqno of a row."""
        return self.first_seqno + row

    def row_of(self, key: bytes) -> int | None:
        """Return the row that holds ``key``, if this segment made it."""
        digits = key[len(self._prefix) :]
        if len(key) != self._key_bytes or not key.startswith(self._prefix) or not digits.isdigit():
            return None
        row = int(np.searchsorted(self._ids, int(digits)))
        return row if row < len(self._ids) and self._ids[row] == int(digits) else None

    def version(self, row: int) -> Version:
        """Return one document as a version of its own."""
        return version_of(self.frames[row].tobytes())


def ids_by_vbucket(settings: PreloadSettings, vbuckets: int) -> list[npt.NDArray[np.int64]]:
    """Return for each vbucket the ascending document numbers whose keys it holds."""
    prefix = settings.prefix.decode("ascii")
    placed = np.fromiter(
        (vbucket_of(f"{prefix}{i:010d}".encode(), vbuckets) for i in range(settings.count)),
        np.int64,
        settings.count,
    )
    order = np.argsort(placed, kind="stable").astype(np.int64)
    bounds = np.searchsorted(placed[order], np.arange(vbuckets + 1))
    return [order[bounds[v] : bounds[v + 1]] for v in range(vbuckets)]


def _encode(
    vbucket: int,
    ids: npt.NDArray[np.int64],
    settings: PreloadSettings,
    first_seqno: int,
    first_cas: int,
) -> npt.NDArray[np.uint8]:
    """Fill one matrix row per document: header, extras, collection 0, key, JSON value."""
    pad = b"x" * (settings.value_bytes - len(_LEAST_VALUE))
    template = Version(
        vbucket,
        settings.prefix + b"0" * _DIGITS,
        Content(_LEAST_VALUE[:-2] + pad + b'"}', int(Datatype.JSON)),
        seqno=first_seqno,
        rev=1,
        cas=first_cas,
    )
    frame = b"".join(template.wire(int(Flavour.COLLECTIONS)))
    rows = np.arange(len(ids), dtype=np.uint64)
    frames = np.empty((len(ids), len(frame)), np.uint8)
    frames[:] = np.frombuffer(frame, np.uint8)
    frames[:, CAS_AT : CAS_AT + 8] = _big_endian(np.uint64(first_cas) + (rows << np.uint64(16)))
    frames[:, SEQNO_AT : SEQNO_AT + 8] = _big_endian(np.uint64(first_seqno) + rows)
    value_at = len(frame) - settings.value_bytes
    digits = _digits(ids)
    frames[:, value_at - _DIGITS : value_at] = digits
    frames[:, value_at + 7 : value_at + 7 + _DIGITS] = digits
    pad_at = value_at + len(_LEAST_VALUE) - 2
    pad_bytes = len(frame) - 2 - pad_at
    noise = np.random.default_rng([settings.seed, vbucket])
    for row in range(0, len(ids), 4096):
        part = frames[row : row + 4096, pad_at : pad_at + pad_bytes]
        raw = np.frombuffer(noise.bytes(part.size), np.uint8) & np.uint8(63)
        part[:] = _ALPHABET[raw].reshape(part.shape)
    return frames


def _big_endian(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    return numbers.astype(">u8").view(np.uint8).reshape(-1, 8)


def _digits(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    powers = 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64)
    return ((ids[:, None] // powers) % 10 + ord("0")).astype(np.uint8)
