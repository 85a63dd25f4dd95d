r"""The format of a vbucket's disk log: a file header, then batches. Numbers are little-endian u64.

    file header    magic "DCPDISK\n", format version, vbucket, generation, CRC of these
    batch header   magic "DCPBATCH", offset of this header in the file, generation, keep_up_to,
                   snapshot_end, purge_seqno, numbers of items, replacements, tombstones, compacted
                   ranges, completions and inner ends, bytes of state and of frames, CRC of these
    index          seqno of each item; frame bytes of each item;
                   seqno of the replacing item, per replacement; seqno of the replaced item;
                   seqno of each tombstone; its delete time in seconds;
                   start of each compacted range; its end;
                   seqno of each completed prepare; seqno of its commit or abort;
                   last seqno of each disk snapshot in the batch, except the last snapshot
    state          JSON of ``saved_vbucket.py``; empty: the state of the previous batch
    frames         the items, one after the other
    trailer        CRC of index, state and frames, continued from the header's CRC

A batch adds disk snapshots, or first removes everything above ``keep_up_to``, or both. It counts
only if it is complete and both CRCs (CRC-32, IEEE) match. Compaction writes a file of the next
generation; its first batch has all current items, and only that batch has ``purge_seqno`` and
compacted ranges.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final
from zlib import crc32

import numpy as np

from dcp.errors import DcplakeError
from dcp.server.storage.disk_file import Data, DiskFile
from dcp.server.storage.disk_ranges import CompactedRanges, U64s, no_seqnos
from dcp.server.storage.frame_crcs import RunningCrcs, U32s, no_crcs
from dcp.types import U64_MAX

FORMAT_VERSION: Final = 4
_FILE_MAGIC: Final = b"DCPDISK\n"
_BATCH_MAGIC: Final = b"DCPBATCH"
_FILE: Final = Struct("<8s3Q")
_BATCH: Final = Struct("<8s13Q")
_CRC: Final = Struct("<Q")
FILE_HEADER_BYTES: Final = _FILE.size + _CRC.size
_BATCH_HEADER_BYTES: Final = _BATCH.size + _CRC.size
_CHECKED_BYTES: Final = 1024 * 1024
"""Files are read in pieces of this size, so that a large batch needs little memory."""
_COLUMNS_OF_A_LENGTH: Final = (2, 2, 2, 2, 2, 1)
"""Number of index columns that share one count of the header."""


class DiskFormatError(DcplakeError):
    """The file is damaged, or is no disk log of this vbucket and this version of dcplake."""


class BrokenBatchError(DcplakeError):
    """These bytes are no complete batch: a crash cut it short, or the disk damaged it."""


@dataclass(frozen=True, slots=True)
class DiskBatch:
    """The contents of one batch, without its frames."""

    state: bytes
    snapshot_end: int
    """The vbucket's high seqno after this batch; it may be above the last item."""
    seqnos: U64s = field(default_factory=no_seqnos)
    """Of the items, ascending."""
    sizes: U64s = field(default_factory=no_seqnos)
    """Bytes of each item's frame."""
    replacing: U64s = field(default_factory=no_seqnos)
    replaced: U64s = field(default_factory=no_seqnos)
    """Seqnos of older versions; the items ``replacing`` replace them."""
    tombstones: U64s = field(default_factory=no_seqnos)
    delete_times: U64s = field(default_factory=no_seqnos)
    """Of the ``tombstones``, in seconds since 1970."""
    compacted: CompactedRanges = field(default_factory=CompactedRanges)
    completed: U64s = field(default_factory=no_seqnos)
    """Seqnos of prepares; the items ``completing`` commit or abort them."""
    completing: U64s = field(default_factory=no_seqnos)
    inner_ends: U64s = field(default_factory=no_seqnos)
    """Last seqnos of all disk snapshots in the batch but the last, ascending."""
    keep_up_to: int = U64_MAX
    """Everything on disk above this seqno is lost when the batch applies."""
    purge_seqno: int = 0
    crcs: U32s = field(default_factory=no_crcs)
    """Running CRC behind each frame, in memory only; empty if nothing is checked."""

    @property
    def data_bytes(self) -> int:
        return int(self.sizes.sum())

    @property
    def _index(self) -> tuple[U64s, ...]:
        items = (self.seqnos, self.sizes, self.replacing, self.replaced)
        tombstones = self.tombstones, self.delete_times
        compacted = self.compacted.starts, self.compacted.ends
        completions = self.completed, self.completing
        return (*items, *tombstones, *compacted, *completions, self.inner_ends)

    @property
    def frames_at(self) -> int:
        """Offset of the frames from the start of the batch."""
        return _BATCH_HEADER_BYTES + sum(8 * len(part) for part in self._index) + len(self.state)

    @property
    def size_bytes(self) -> int:
        return self.frames_at + self.data_bytes + _CRC.size

    def encode(
        self,
        frames: Iterable[Data],
        *,
        generation: int,
        offset: int,
        crcs: RunningCrcs | None = None,
    ) -> Iterator[Data]:
        """Yield the bytes of the batch for this place in the file; ``crcs`` gets the frames."""
        # Offset and generation are part of the header: bytes of an older batch at this place never
        # pass.
        fields = _BATCH.pack(
            _BATCH_MAGIC,
            offset,
            generation,
            self.keep_up_to,
            self.snapshot_end,
            self.purge_seqno,
            *(len(part) for part in self._index[::2]),
            len(self.state),
            self.data_bytes,
        )
        crc = crc32(fields)
        yield fields + _CRC.pack(crc)
        index = np.concatenate(self._index).astype("<u8", copy=False).view(np.uint8).data
        crc = crc32(self.state, crc32(index, crc))
        yield index
        yield self.state
        for part in frames:
            crc = crc32(part, crc)
            if crcs is not None:
                crcs.add(part)
            yield part
        yield _CRC.pack(crc)


def encode_file_header(vbucket: int, generation: int) -> bytes:
    fields = _FILE.pack(_FILE_MAGIC, FORMAT_VERSION, vbucket, generation)
    return fields + _CRC.pack(crc32(fields))


def read_generation(file: DiskFile, vbucket: int) -> int:
    """Return a disk log's generation.

    Raises DiskFormatError if the file is no disk log of this vbucket and format.
    """
    if file.size_bytes < FILE_HEADER_BYTES:
        raise DiskFormatError(
            f"{file}: found {file.size_bytes} bytes, expected {FILE_HEADER_BYTES} or more: "
            "no disk log of a vbucket"
        )
    header = bytes(file.read(0, FILE_HEADER_BYTES))
    magic, version, found_vbucket, generation = _FILE.unpack_from(header)
    if magic != _FILE_MAGIC:
        raise DiskFormatError(
            f"{file}: found magic {magic!r}, expected {_FILE_MAGIC!r}: no disk log of a vbucket"
        )
    if version != FORMAT_VERSION:
        raise DiskFormatError(f"{file}: found format version {version}, expected {FORMAT_VERSION}")
    found_crc, crc = _CRC.unpack_from(header, _FILE.size)[0], crc32(header[: _FILE.size])
    if found_crc != crc:
        raise DiskFormatError(f"{file}: found header CRC {found_crc:#x}, expected {crc:#x}")
    if found_vbucket != vbucket:
        raise DiskFormatError(f"{file}: found vbucket {found_vbucket}, expected {vbucket}")
    return int(generation)


def find_batch(file: DiskFile, offset: int, end: int, generation: int) -> int | None:
    """Return the offset of the next valid batch header behind ``offset``; None if there is none.

    A crash damages only the last batch, so a later one proves that the disk damaged this one.
    """
    # A header may lie across the border of two pieces.
    overlap = _BATCH_HEADER_BYTES - 1
    for start in range(offset + 1, end, _CHECKED_BYTES):
        data = bytes(file.read(start, min(_CHECKED_BYTES + overlap, end - start)))
        at = data.find(_BATCH_MAGIC)
        while 0 <= at <= len(data) - _BATCH_HEADER_BYTES:
            _, found_offset, found_generation, *_ = _BATCH.unpack_from(data, at)
            crc = crc32(data[at : at + _BATCH.size])
            is_sound = _CRC.unpack_from(data, at + _BATCH.size)[0] == crc
            # A document may contain the bytes of a batch header; only a real one stands at its own
            # offset.
            if is_sound and (found_offset, found_generation) == (start + at, generation):
                return start + at
            at = data.find(_BATCH_MAGIC, at + 1)
    return None


def read_batch(
    file: DiskFile,
    offset: int,
    end: int,
    generation: int,
    crc_behind: Callable[[int], int] | None = None,
) -> DiskBatch:
    """Read the batch at ``offset`` of a file of ``end`` bytes.

    ``crc_behind`` returns the running CRC after the last frame up to a seqno. The batch's ``crcs``
    continue it; without it they are empty. Raises BrokenBatchError if there is no complete batch.
    """
    if end - offset < _BATCH_HEADER_BYTES:
        raise BrokenBatchError(
            f"found {end - offset} bytes, expected a batch header of {_BATCH_HEADER_BYTES}"
        )
    header = bytes(file.read(offset, _BATCH_HEADER_BYTES))
    magic, found_offset, found_generation, *numbers = _BATCH.unpack_from(header)
    crc = crc32(header[: _BATCH.size])
    expected_crc = _CRC.unpack_from(header, _BATCH.size)[0]
    if magic != _BATCH_MAGIC or expected_crc != crc:
        raise BrokenBatchError(
            f"found a batch header with magic {magic!r} and CRC {crc:#x}, expected "
            f"{_BATCH_MAGIC!r} and {expected_crc:#x}"
        )
    if (found_offset, found_generation) != (offset, generation):
        raise BrokenBatchError(
            f"found the batch of offset {found_offset} in generation {found_generation}, "
            f"expected offset {offset} in generation {generation}"
        )
    keep_up_to, snapshot_end, purge_seqno, *counts, state_bytes, data_bytes = numbers
    index_bytes = 8 * int(np.dot(counts, _COLUMNS_OF_A_LENGTH))
    frames_at = offset + _BATCH_HEADER_BYTES + index_bytes + state_bytes
    size = frames_at + data_bytes + _CRC.size - offset
    if offset + size > end:
        raise BrokenBatchError(f"found {end - offset} bytes, expected a batch of {size}")
    index = file.read(offset + _BATCH_HEADER_BYTES, frames_at - offset - _BATCH_HEADER_BYTES)
    crc = crc32(index, crc)
    columns = _columns(index, counts)
    begin = 0 if crc_behind is None else crc_behind(keep_up_to)
    crcs = None if crc_behind is None else RunningCrcs(columns[1], begin)
    for at in range(frames_at, frames_at + data_bytes, _CHECKED_BYTES):
        part = file.read(at, min(_CHECKED_BYTES, frames_at + data_bytes - at))
        crc = crc32(part, crc)
        if crcs is not None:
            crcs.add(part)
    expected_crc = _CRC.unpack(file.read(frames_at + data_bytes, _CRC.size))[0]
    if expected_crc != crc:
        raise BrokenBatchError(f"found CRC {crc:#x} over {size} bytes, expected {expected_crc:#x}")
    return DiskBatch(
        bytes(index[index_bytes:]),
        snapshot_end,
        seqnos=columns[0],
        sizes=columns[1],
        replacing=columns[2],
        replaced=columns[3],
        tombstones=columns[4],
        delete_times=columns[5],
        compacted=CompactedRanges(columns[6], columns[7]),
        completed=columns[8],
        completing=columns[9],
        inner_ends=columns[10],
        keep_up_to=keep_up_to,
        purge_seqno=purge_seqno,
        crcs=no_crcs() if crcs is None else crcs.behind,
    )


def _columns(index: Data, counts: list[int]) -> list[U64s]:
    lengths = np.repeat(counts, _COLUMNS_OF_A_LENGTH)
    numbers = np.frombuffer(index, "<u8", int(lengths.sum())).astype(np.uint64, copy=False)
    return np.split(numbers, np.cumsum(lengths)[:-1])
