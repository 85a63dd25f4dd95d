"""A vbucket's log as a file and what it says: opened, appended to, written anew.

When it is opened every batch is read. A crash leaves a part of the batch that was being written: it
is cut off, nothing was promised of it. Anything else that is no whole batch is refused, and the
file left as it is.
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


class Log:
    """The log of one vbucket. What ``contents`` says is on disk.

    ``generation`` is 1, and 1 more with every compaction; ``scanned`` reads the file of this one.
    """

    def __init__(self, file: DiskFile, vbucket: int) -> None:
        """Read the file, and cut from its end what a crash left of the last batch.

        Raises:
            DiskFormatError: this is no log, of another format version, another vbucket's, or it is
                damaged.
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
        """Cut the file where it is no whole batch, as a crash leaves it.

        Raises:
            DiskFormatError: another batch follows, so the disk damaged this one.
            OSError: the file cannot be written.
        """
        follows = find_batch(self._file, self.size_bytes, end, self.generation)
        if follows is not None:
            raise DiskFormatError(
                f"{self._file}: the batch at byte {self.size_bytes} is damaged: {error}, and "
                f"another batch follows at byte {follows}; restore the folder from a copy, or "
                "begin with an empty one (a relay fills it from its cluster)"
            )
        self._file.append(self.size_bytes, ())

    @property
    def may_decay(self) -> bool:
        """True if the file is on a disk, which may damage it."""
        return self._file.may_decay

    def _crc_behind(self, seqno: int) -> int:
        return self.contents.index.crc_behind(seqno)

    def _crcs_of(self, batch: DiskBatch, crc: int) -> RunningCrcs | None:
        """Return what takes the CRCs of a batch's frames, where they will be looked at."""
        return RunningCrcs(batch.sizes, crc) if self._file.may_decay else None

    def _take(self, batch: DiskBatch) -> None:
        """Know of a batch that stands at the end of the file."""
        self.contents.apply(batch, self.size_bytes)
        self.size_bytes += batch.size_bytes

    def append(self, batch: DiskBatch, frames: Sequence[Data]) -> None:
        """Write a batch durably; before the first one the file is made.

        Raises:
            OSError: the file cannot be written; the log is what it was.
        """
        self.begin(batch, frames).complete()

    def begin(self, batch: DiskBatch, frames: Sequence[Data]) -> PendingWrite:
        """Give a batch its place at the end; until it is over no other can get one."""
        self._require_nothing_pending()
        generation, is_first = self.generation, not self.size_bytes
        offset = self.size_bytes or FILE_HEADER_BYTES
        crc_before = self._crc_behind(batch.keep_up_to)
        crcs: RunningCrcs | None = None

        def write() -> None:
            nonlocal crcs
            crcs = self._crcs_of(batch, crc_before)  # anew, where this is tried again
            if is_first:
                # By replacement: a crash never leaves a part of the file header.
                self._file.replace([encode_file_header(self._vbucket, generation)])
            parts = batch.encode(frames, generation=generation, offset=offset, crcs=crcs)
            self._file.append(offset, parts)

        def apply() -> None:
            self.size_bytes = offset
            self._take(_with(batch, crcs))

        self._pending = PendingWrite(write, apply)
        return self._pending

    def _require_nothing_pending(self) -> None:
        if self._pending is not None and not self._pending.is_over:
            raise ValueError(f"vbucket {self._vbucket}: a batch is being written: finish it first")

    def rewrite(self, plan: CompactionPlan) -> None:
        """Put the next generation in this one's place; after a crash one of them is there.

        Raises:
            OSError: it cannot be written, or a frame is damaged; the log holds what it held.
        """
        self.begin_rewrite(plan).complete()

    def begin_rewrite(self, plan: CompactionPlan) -> PendingWrite:
        """Prepare ``rewrite``; until it is over scans read the old file, and nothing is added."""
        self._require_nothing_pending()
        generation = self.generation + 1
        crcs = self._crcs_of(plan.batch, 0)
        is_whole = False
        old = self.scanned
        old.enter()  # so that it is pinned, for all who read it until the end
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
            # The new one may be there after all, when only its name could not be made durable.
            # Where it never was whole that is not asked of a file that may be damaged.
            if is_whole and read_generation(self._file, self._vbucket) == generation:
                apply()
            else:
                old.leave()

        self._pending = PendingWrite(write, apply, undo, is_optional=True)
        return self._pending

    def close(self) -> None:
        """Let scans that are open go on, whoever writes the file next."""
        if self.size_bytes:
            self.scanned.retire()


def _with(batch: DiskBatch, crcs: RunningCrcs | None) -> DiskBatch:
    """Return a batch that was written, with the CRCs of its frames."""
    return batch if crcs is None else replace(batch, crcs=crcs.behind)
