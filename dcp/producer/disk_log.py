"""A vbucket's log as a file and what it says: opened, appended to, written anew.

When it is opened every batch is read, up to the first that is not whole. A crash leaves a part of
the batch that was being written: the file is cut there, nothing was promised of that batch. A
damaged batch in the middle loses what follows it too: what is cut is kept as a file beside, and the
warning says how much it is and where.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from threading import Lock
from typing import Final

from dcp.producer.disk_batch import (
    FILE_HEADER_BYTES,
    Batch,
    BrokenBatchError,
    encode_file_header,
    find_batch,
    read_batch,
    read_generation,
)
from dcp.producer.disk_compaction import CompactionPlan
from dcp.producer.disk_contents import Contents
from dcp.producer.disk_file import Data, DiskFile
from dcp.producer.disk_scan import Generation

_LOG = logging.getLogger(__name__)
_MORE_IS_LOST: Final = ", more than a torn last batch (another begins at byte %d): kept as %s"


class PendingWrite:
    """A batch, which must go to disk, or a log written anew, which need not.

    ``is_optional`` is what may be given up when it cannot be written.
    """

    def __init__(
        self,
        write: Callable[[], None],
        apply: Callable[[], None],
        give_up: Callable[[], None] | None = None,
    ) -> None:
        """``apply`` lets the log know of it, ``give_up`` that it will not be written."""
        self.apply = apply
        self.give_up = give_up
        self._write = write
        self._lock = Lock()
        self._is_written = False
        self._failure: Exception | None = None

    @property
    def is_optional(self) -> bool:
        """Whether the log holds the same without it."""
        return self.give_up is not None

    @property
    def is_written(self) -> bool:
        """Whether it is durable."""
        return self._is_written

    def run(self) -> None:
        """Write it durably, unless that was done; any thread may, several wait for the first.

        Raises:
            OSError: the file cannot be written. This may be called again: what is optional is not
                tried a second time.
        """
        with self._lock:
            if self._is_written:
                return
            if self._failure is not None:
                raise self._failure
            try:
                self._write()
            except Exception as error:
                self._failure = error if self.is_optional else None
                raise
            self._is_written = True

    def abandon(self) -> None:
        """Never write it, if that was not done; returns when no thread does."""
        with self._lock:
            self._is_written = True


class Log:
    """The log of one vbucket. What ``contents`` says is on disk.

    ``generation`` reads the file, for as long as this file is the vbucket's.
    """

    def __init__(self, file: DiskFile, vbucket: int) -> None:
        """Read the file, and cut from its end what is no whole batch.

        Raises:
            DiskFormatError: this is no log, of another format version, or another vbucket's.
        """
        self._file = file
        self._vbucket = vbucket
        self._read()

    def _read(self) -> None:
        self.contents, self.generation = Contents(), Generation(self._file)
        self._pending: PendingWrite | None = None
        self._number, self.size_bytes = 1, 0
        end = self._file.size_bytes
        if end < FILE_HEADER_BYTES:
            if end:
                text = "%s: %d bytes are too few for a log: starting with none"
                _LOG.warning(text, self._file, end)
            return
        self._number = read_generation(self._file, self._vbucket)
        self.size_bytes = FILE_HEADER_BYTES
        while self.size_bytes < end:
            try:
                batch = read_batch(self._file, self.size_bytes, end, self._number)
            except BrokenBatchError as error:
                self._cut_tail(end, error)
                return
            self._take(batch)

    def _cut_tail(self, end: int, error: BrokenBatchError) -> None:
        """Cut the file where it is no whole batch; a copy is kept of more than a torn last one.

        Raises:
            OSError: the copy cannot be written, or the file; it is what it was, or cut.
        """
        kept, follows = "", find_batch(self._file, self.size_bytes, end, self._number)
        if follows is not None:
            kept = self._file.keep_damaged(self.size_bytes)
        _LOG.warning(
            "%s: %s: cut at byte %d, %d bytes are lost%s; vbucket %d goes on from seqno %d",
            self._file,
            error,
            self.size_bytes,
            end - self.size_bytes,
            "" if follows is None else _MORE_IS_LOST % (follows, kept or "nothing"),
            self._vbucket,
            self.contents.persisted_seqno,
        )
        self._file.append(self.size_bytes, ())

    def _take(self, batch: Batch) -> None:
        """Know of a batch that stands at the end of the file."""
        self.contents.apply(batch, self.size_bytes)
        self.size_bytes += batch.size_bytes

    @property
    def number(self) -> int:
        """The number of the generation: 1, and 1 more with every compaction."""
        return self._number

    def append(self, batch: Batch, frames: Sequence[Data]) -> None:
        """Write a batch durably; before the first one the file is made.

        Raises:
            OSError: the file cannot be written; the log is what it was.
        """
        pending = self.begin(batch, frames)
        try:
            pending.run()
        finally:
            self._pending = None
        self.finish(pending)

    def begin(self, batch: Batch, frames: Sequence[Data]) -> PendingWrite:
        """Give a batch its place at the end; until ``finish`` no other can get one."""
        self._require_nothing_pending()
        number, is_first = self._number, not self.size_bytes
        offset = self.size_bytes or FILE_HEADER_BYTES

        def write() -> None:
            if is_first:
                # By replacement: a crash never leaves a part of the file header.
                self._file.replace([encode_file_header(self._vbucket, number)])
            self._file.append(offset, batch.encode(frames, generation=number, offset=offset))

        def apply() -> None:
            self.size_bytes = offset
            self._take(batch)

        self._pending = PendingWrite(write, apply)
        return self._pending

    def finish(self, pending: PendingWrite) -> None:
        """Know of what was written."""
        self._pending = None
        pending.apply()

    def give_up(self, pending: PendingWrite) -> None:
        """Go on without a write that failed, or was never run; nothing if that was done.

        Raises:
            OSError: the file cannot be read; this may be called again.
        """
        if self._pending is pending:
            if pending.give_up is not None:
                pending.give_up()
            self._pending = None

    def _require_nothing_pending(self) -> None:
        if self._pending is not None:
            raise ValueError(f"vbucket {self._vbucket}: a batch is being written: finish it first")

    def rewrite(self, plan: CompactionPlan) -> None:
        """Put the next generation in this one's place; after a crash one of them is there.

        Raises:
            OSError: it cannot be written; the log holds what it held.
        """
        pending = self.begin_rewrite(plan)
        try:
            pending.run()
        except BaseException:
            self.give_up(pending)
            raise
        self.finish(pending)

    def begin_rewrite(self, plan: CompactionPlan) -> PendingWrite:
        """Prepare ``rewrite``; until ``finish`` scans read the old file, and nothing is added."""
        self._require_nothing_pending()
        number = self._number + 1
        header = encode_file_header(self._vbucket, number)
        old = self.generation
        old.enter()  # so that it is pinned, for all who read it until the end
        old.retire()

        def write() -> None:
            frames = plan.frames(old)
            batch = plan.batch.encode(frames, generation=number, offset=FILE_HEADER_BYTES)
            self._file.replace(chain([header], batch))

        def apply() -> None:
            old.leave()
            self.contents, self.generation = Contents(), Generation(self._file)
            self._number, self.size_bytes = number, FILE_HEADER_BYTES
            self._take(plan.batch)

        def give_up() -> None:
            # The new one may be there after all, when only its name could not be made durable.
            if read_generation(self._file, self._vbucket) == number:
                apply()
            else:
                old.leave()

        self._pending = PendingWrite(write, apply, give_up)
        return self._pending

    def close(self) -> None:
        """Let scans that are open go on, whoever writes the file next."""
        if self.size_bytes:
            self.generation.retire()
