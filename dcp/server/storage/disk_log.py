"""A vbucket's log file together with its contents.

Opening reads every batch. A crash can leave an incomplete batch at the end, of which nobody was
promised anything, so opening cuts it off. Any other damage raises an error, and the file stays as
it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dcp.server.storage.disk_batch import (
    FILE_HEADER_BYTES,
    BrokenBatchError,
    DiskBatch,
    DiskFormatError,
    encode_file_header,
    find_batch,
    read_batch,
    read_generation,
)
from dcp.server.storage.disk_compaction import CompactionPlan
from dcp.server.storage.disk_contents import Contents
from dcp.server.storage.disk_file import Data, DiskFile
from dcp.server.storage.disk_scan import ScannedFile
from dcp.server.storage.frame_crcs import RunningCrcs
from dcp.server.storage.pending_write import PendingWrite


class DiskLog:
    """The disk log of one vbucket.

    ``contents`` never includes a pending write. ``generation`` counts from 1, and each compaction
    adds 1. ``scanned`` is the present generation's file.
    """

    def __init__(self, file: DiskFile, vbucket: int) -> None:
        """Read the file; cut an incomplete batch from its end.

        Raises DiskFormatError if the file is damaged, or is no disk log of this vbucket and format
        version.
        """
        self._file = file
        self._vbucket = vbucket
        self._read()

    def _read(self) -> None:
        self.contents, self.scanned = Contents(), ScannedFile(self._file)
        self._pending: PendingWrite | None = None
        self.generation, self.size_bytes = 1, 0
        end = self._file.size_bytes
        if not end:
            return
        self.generation = read_generation(self._file, self._vbucket)
        self.size_bytes = FILE_HEADER_BYTES
        known = self._crc_behind if self._file.may_decay else None
        while self.size_bytes < end:
            try:
                batch = read_batch(self._file, self.size_bytes, end, self.generation, known)
            except BrokenBatchError as error:
                self._cut_torn_end(end, error)
                return
            self._take(batch)

    def _cut_torn_end(self, end: int, error: BrokenBatchError) -> None:
        follows = find_batch(self._file, self.size_bytes, end, self.generation)
        # A crash damages only the last batch. A valid one behind it means that the disk damaged
        # this one, and a cut would lose data.
        if follows is not None:
            raise DiskFormatError(
                f"{self._file}: the batch at byte {self.size_bytes} is damaged: {error}, and "
                f"another batch follows at byte {follows}; restore the folder from a copy, or "
                "begin with an empty one (a relay fills it from its cluster)"
            )
        self._file.append(self.size_bytes, ())

    @property
    def may_decay(self) -> bool:
        return self._file.may_decay

    def _crc_behind(self, seqno: int) -> int:
        return self.contents.index.crc_behind(seqno)

    def _crcs_of(self, batch: DiskBatch, crc: int) -> RunningCrcs | None:
        """Return a collector of the batch's CRCs; None for memory, whose frames nobody checks."""
        return RunningCrcs(batch.sizes, crc) if self._file.may_decay else None

    def _take(self, batch: DiskBatch) -> None:
        self.contents.apply(batch, self.size_bytes)
        self.size_bytes += batch.size_bytes

    def append(self, batch: DiskBatch, frames: Sequence[Data]) -> None:
        """Write a batch durably.

        Raises OSError if that fails; the disk log is then unchanged.
        """
        self.begin(batch, frames).complete()

    def begin(self, batch: DiskBatch, frames: Sequence[Data]) -> PendingWrite:
        """Reserve the end of the disk log for a batch; only one write may be pending."""
        self._require_nothing_pending()
        generation, is_first = self.generation, not self.size_bytes
        offset = self.size_bytes or FILE_HEADER_BYTES
        crc_before = self._crc_behind(batch.keep_up_to)
        crcs: RunningCrcs | None = None

        def write() -> None:
            nonlocal crcs
            # A second attempt must start again with the first frame.
            crcs = self._crcs_of(batch, crc_before)
            if is_first:
                # By replacement: a crash never leaves a part of the file header.
                self._file.replace([encode_file_header(self._vbucket, generation)])
            parts = batch.encode(frames, generation=generation, offset=offset, crcs=crcs)
            self._file.append(offset, parts)

        def apply() -> None:
            # The first batch begins behind the file header.
            self.size_bytes = offset
            self._take(_with(batch, crcs))

        self._pending = PendingWrite(write, apply)
        return self._pending

    def _require_nothing_pending(self) -> None:
        if self._pending is not None and not self._pending.is_over:
            raise ValueError(f"vbucket {self._vbucket}: a batch is being written: finish it first")

    def rewrite(self, plan: CompactionPlan) -> None:
        """Replace the disk log by its next generation; a crash leaves the old or the new one.

        Raises OSError if that fails or a frame is damaged; the disk log is then unchanged.
        """
        self.begin_rewrite(plan).complete()

    def begin_rewrite(self, plan: CompactionPlan) -> PendingWrite:
        """Prepare ``rewrite``; until its end scans read the old file, and ``begin`` fails."""
        self._require_nothing_pending()
        generation = self.generation + 1
        crcs = self._crcs_of(plan.batch, 0)
        is_whole = False
        old = self.scanned
        # Count as a scan, so that ``retire`` pins the old file until the end.
        old.enter()
        old.retire()

        def parts() -> Iterator[Data]:
            nonlocal is_whole
            yield encode_file_header(self._vbucket, generation)
            yield from plan.batch.encode(
                plan.frames(old), generation=generation, offset=FILE_HEADER_BYTES, crcs=crcs
            )
            is_whole = True

        def write() -> None:
            self._file.replace(parts())

        def apply() -> None:
            old.leave()
            self.contents, self.scanned = Contents(), ScannedFile(self._file)
            self.generation, self.size_bytes = generation, FILE_HEADER_BYTES
            self._take(_with(plan.batch, crcs))

        def undo() -> None:
            # If only the fsync of the folder failed, the new file is in place already. Do not read
            # the file otherwise: it may be damaged.
            if is_whole and read_generation(self._file, self._vbucket) == generation:
                apply()
            else:
                old.leave()

        self._pending = PendingWrite(write, apply, undo, is_optional=True)
        return self._pending

    def close(self) -> None:
        """Keep open scans readable, even if another process writes the file next."""
        if self.size_bytes:
            self.scanned.retire()


def _with(batch: DiskBatch, crcs: RunningCrcs | None) -> DiskBatch:
    return batch if crcs is None else replace(batch, crcs=crcs.behind)
