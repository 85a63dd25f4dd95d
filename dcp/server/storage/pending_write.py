"""One write of a vbucket's log that is under way; a log has one at a time.

There are three kinds, which differ in what becomes of them when they cannot be written:

    what goes to disk        where it cannot be written           who begins it
    items, and the state     it stays begun: tried again, as      DiskWriter.begin_batch
                             the items are nowhere else on disk
    the log anew             given up with a warning: the log     DiskWriter.begin_compaction
                             holds the same without it
    the state alone          given up: whoever changed the        Persistence.begin_save
                             state takes that back

All go one way. Whoever begins it holds the bucket's lock; ``run`` needs no lock, and any thread
may; with the lock held again ``finish`` lets the log know of it, or ``give_up`` that it will not be
written. Nobody reads of the log what is not known to be durable. Of data that nobody wants any more
what is under way is abandoned.
"""

from collections.abc import Callable
from enum import Enum
from threading import Lock


def _nothing() -> None:
    """Undo nothing: of a batch at its end the log does not know before it is written."""


class _File(Enum):
    """The outcome of writing the file."""

    OPEN = "nothing is written, or it failed and may be tried again"
    WRITTEN = "durable"
    FAILED = "not written, and not tried again"
    ABANDONED = "never to be written, nor held if it was"


class PendingWrite:
    """A write to disk; with ``is_optional`` it may be given up.

    ``is_over`` once it is finished, given up or abandoned: nothing happens any more then.
    """

    def __init__(
        self,
        write: Callable[[], None],
        apply: Callable[[], None],
        undo: Callable[[], None] = _nothing,
        *,
        is_optional: bool = False,
    ) -> None:
        """``apply`` lets the log know of it, ``undo`` that it will not be written."""
        self.is_optional = is_optional
        self.is_over = False
        self._write = write
        self._apply = apply
        self._undo = undo
        self._lock = Lock()
        self._file = _File.OPEN
        self._failure: Exception | None = None

    def run(self) -> None:
        """Write it durably, unless that was done, or it was abandoned.

        Any thread may, several wait for the first.

        Raises:
            OSError: the file cannot be written. This may be called again: what is optional is not
                tried a second time.
        """
        with self._lock:
            if self._file in (_File.WRITTEN, _File.ABANDONED):
                return
            if self._failure is not None:
                raise self._failure
            try:
                self._write()
            except Exception as error:
                if self.is_optional:
                    self._file, self._failure = _File.FAILED, error
                raise
            self._file = _File.WRITTEN

    def finish(self) -> None:
        """Hold it, once it is durable; waits for whoever runs it, or does it.

        Nothing is held of what was abandoned.

        Raises:
            OSError: the file cannot be written; this may be called again, or ``give_up``.
        """
        self.run()
        if not self.is_over:
            apply = self._apply
            self._let_go()
            apply()

    def give_up(self) -> None:
        """Go on without a write that failed, or was never run; nothing if it is over.

        Raises:
            OSError: the file cannot be read; this may be called again.
        """
        if not self.is_over:
            self._undo()
            self._let_go()

    def end(self) -> None:
        """Hold it if it was written, else go on without it."""
        if self._file is _File.WRITTEN:
            self.finish()
        else:
            self.give_up()

    def complete(self) -> None:
        """Write it and hold it, in one go, or go on without it.

        Raises:
            OSError: the file cannot be written; the log holds what it held.
        """
        try:
            self.run()
        finally:
            self.end()

    def abandon(self) -> None:
        """Never write it, if that was not done, nor hold it; returns when no thread writes.

        It is over, and nothing is undone.
        """
        with self._lock:
            self._file = _File.ABANDONED
            self._let_go()

    def _let_go(self) -> None:
        """Be over, and hold nothing of what was to be written: a log keeps its last write."""
        self.is_over = True
        self._write = self._apply = self._undo = _nothing
