r"""The bytes of a vbucket's log: a file header, then batches. Every number is a little-endian u64.

    file header    magic "DCPDISK\n", format version, vbucket, generation, CRC of these
    batch header   magic "DCPBATCH", offset of this header in the file, generation, keep_up_to,
                   snapshot_end, purge_seqno, numbers of items, replacements, tombstones, lost
                   ranges, completions and inner ends, bytes of state and of frames, CRC of these
    index          seqno of each item; frame bytes of each item;
                   seqno of each item that replaces another, once for each; the seqno it replaces;
                   seqno of each tombstone; its delete time in seconds;
                   start of each lost range; its end;
                   seqno of each prepare that is completed; of what completed it;
                   last seqno of each disk snapshot in it but the last
    state          opaque to the disk; empty: as in the batch before
    frames         one after the other
    trailer        CRC of index, state and frames, begun with the header's CRC

A batch is one disk snapshot or several, or loses everything above ``keep_up_to``, or both. It
counts if it is there to its last byte and both its CRCs (CRC-32, IEEE) are right. Compaction writes
a file of the next generation whose first batch holds everything that is live; only that batch has a
``purge_seqno`` and lost ranges.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final
from zlib import crc32

import numpy as np

from dcp.errors import DcplakeError
from dcp.server.storage.disk_file import Data, DiskFile
from dcp.server.storage.disk_ranges import LostRanges, U64s, no_seqnos
from dcp.server.storage.frame_crcs import RunningCrcs, U32s, no_crcs
from dcp.types import U64_MAX

FORMAT_VERSION: Final = 3
_FILE_MAGIC: Final = b"DCPDISK\n"
_BATCH_MAGIC: Final = b"DCPBATCH"
_FILE: Final = Struct("<8s3Q")
_BATCH: Final = Struct("<8s13Q")
_CRC: Final = Struct("<Q")
FILE_HEADER_BYTES: Final = _FILE.size + _CRC.size
_BATCH_HEADER_BYTES: Final = _BATCH.size + _CRC.size
_CHECKED_BYTES: Final = 1024 * 1024
_COLUMNS_OF_A_LENGTH: Final = (2, 2, 2, 2, 2, 1)


class DiskFormatError(DcplakeError):
    """A file that is no log of this vbucket, is damaged, or of another version of dcplake."""


class BrokenBatchError(DcplakeError):
    """Bytes that are no whole batch: what a crash leaves at the end of a log, or a bad disk.

    The message says what was found and expected.
    """


@dataclass(frozen=True, slots=True)
class DiskBatch:
    """The contents of one batch, without its frames.

    ``seqnos`` and ``sizes`` (in bytes) are of the items; ``replacing`` are the seqnos of items
    that replace an older version of their key, ``replaced`` the seqnos of those;
    ``delete_times`` (seconds) are those of ``tombstones``; the prepares of sync writes at
    ``completed`` seqnos are so by the items at ``completing`` ones. With ``keep_up_to`` everything
    earlier above that seqno is lost. The batch completes the vbucket up to ``snapshot_end``; of
    several disk snapshots in one batch ``inner_ends`` are the last seqnos of all others, ascending.
    ``crcs`` are those of ``RunningCrcs``, which are not written; none where nothing is checked.
    """

    state: bytes
    snapshot_end: int
    seqnos: U64s = field(default_factory=no_seqnos)
    sizes: U64s = field(default_factory=no_seqnos)
    replacing: U64s = field(default_factory=no_seqnos)
    replaced: U64s = field(default_factory=no_seqnos)
    tombstones: U64s = field(default_factory=no_seqnos)
    delete_times: U64s = field(default_factory=no_seqnos)
    lost: LostRanges = field(default_factory=LostRanges)
    completed: U64s = field(default_factory=no_seqnos)
    completing: U64s = field(default_factory=no_seqnos)
    inner_ends: U64s = field(default_factory=no_seqnos)
    keep_up_to: int = U64_MAX
    purge_seqno: int = 0
    crcs: U32s = field(default_factory=no_crcs)

    @property
    def data_bytes(self) -> int:
        """The bytes of all frames."""
        return int(self.sizes.sum())

    @property
    def _index(self) -> tuple[U64s, ...]:
        """All numbers but the header's: columns, two and two of one length but for the last."""
        items = (self.seqnos, self.sizes, self.replacing, self.replaced)
        tombstones, lost = (self.tombstones, self.delete_times), (self.lost.starts, self.lost.ends)
        completions = self.completed, self.completing
        return (*items, *tombstones, *lost, *completions, self.inner_ends)

    @property
    def frames_at(self) -> int:
        """The offset of the frames from the batch's own beginning."""
        return _BATCH_HEADER_BYTES + sum(8 * len(part) for part in self._index) + len(self.state)

    @property
    def size_bytes(self) -> int:
        """The length of the whole batch."""
        return self.frames_at + self.data_bytes + _CRC.size

    def encode(
        self,
        frames: Iterable[Data],
        *,
        generation: int,
        offset: int,
        crcs: RunningCrcs | None = None,
    ) -> Iterator[Data]:
        """Yield the bytes of the batch, for this place in a file of this generation.

        ``crcs`` takes the frames as they are written.
        """
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
    """Return the bytes that a log of this generation begins with."""
    fields = _FILE.pack(_FILE_MAGIC, FORMAT_VERSION, vbucket, generation)
    return fields + _CRC.pack(crc32(fields))


def read_generation(file: DiskFile, vbucket: int) -> int:
    """Return the generation that a log's header tells.

    Raises:
        DiskFormatError: this is no log, of another format version, or another vbucket's.
    """
    if file.size_bytes < FILE_HEADER_BYTES:
        raise DiskFormatError(
            f"{file}: found {file.size_bytes} bytes, expected {FILE_HEADER_BYTES} or more: "
            "no log of a vbucket"
        )
    header = bytes(file.read(0, FILE_HEADER_BYTES))
    magic, version, found_vbucket, generation = _FILE.unpack_from(header)
    if magic != _FILE_MAGIC:
        raise DiskFormatError(
            f"{file}: found magic {magic!r}, expected {_FILE_MAGIC!r}: no log of a vbucket"
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
    """Return where the first batch behind ``offset`` has a sound header; None: there is none.

    That is in the place that it names. A crash leaves none behind the batch that was being written.
    """
    overlap = _BATCH_HEADER_BYTES - 1
    for start in range(offset + 1, end, _CHECKED_BYTES):
        data = bytes(file.read(start, min(_CHECKED_BYTES + overlap, end - start)))
        place = data.find(_BATCH_MAGIC)
        while 0 <= place <= len(data) - _BATCH_HEADER_BYTES:
            _, found_offset, found_generation, *_ = _BATCH.unpack_from(data, place)
            crc = crc32(data[place : place + _BATCH.size])
            is_sound = _CRC.unpack_from(data, place + _BATCH.size)[0] == crc
            if is_sound and (found_offset, found_generation) == (start + place, generation):
                return start + place
            place = data.find(_BATCH_MAGIC, place + 1)
    return None


def read_batch(
    file: DiskFile,
    offset: int,
    end: int,
    generation: int,
    crc_behind: Callable[[int], int] | None = None,
) -> DiskBatch:
    """Read the batch at ``offset`` of a file that is ``end`` bytes long.

    ``crc_behind`` tells the CRC behind the last frame up to a seqno, from which ``crcs`` go on;
    without it there are none.

    Raises:
        BrokenBatchError: there is no whole batch.
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
        lost=LostRanges(columns[6], columns[7]),
        completed=columns[8],
        completing=columns[9],
        inner_ends=columns[10],
        keep_up_to=keep_up_to,
        purge_seqno=purge_seqno,
        crcs=no_crcs() if crcs is None else crcs.behind,
    )


def _columns(index: Data, counts: list[int]) -> list[U64s]:
    """Return the columns of an index."""
    lengths = np.repeat(counts, _COLUMNS_OF_A_LENGTH)
    numbers = np.frombuffer(index, "<u8", int(lengths.sum())).astype(np.uint64, copy=False)
    return np.split(numbers, np.cumsum(lengths)[:-1])
