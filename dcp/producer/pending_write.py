"""One write of a vbucket's log that is under way; a log has one at a time.

There are three kinds, which differ in what becomes of them when they cannot be written:

    what goes to disk        that it cannot be written            who begins it
    items, and the state     it stays begun: tried again, as      DiskWriter.begin_batch
                             the items are nowhere else on disk
    the log anew             given up with a warning: the log     DiskWriter.begin_compaction
                             holds the same without it
    the state alone          given up: whoever changed the        Persistence.begin_save
                             state takes that back

All go one way. Whoever begins it holds the bucket's lock; ``run`` needs no lock, and any thread
may; with the lock held again ``finish`` lets the log know of it, or ``give_up`` that it will not be
written. Nobody reads of the log what is not known to be durable.
"""

from collections.abc import Callable
from enum import Enum, auto
from threading import Lock


def _nothing() -> None:
    """Undo nothing: of a batch at its end the log does not know before it is written."""


class _Stage(Enum):
    """How far a write is with the disk."""

    OPEN = auto()
    WRITTEN = auto()
    FAILED = auto()
    """For good; what is not optional goes on being open."""
    ABANDONED = auto()


class PendingWrite:
    """What must go to disk, or with ``is_optional`` what may be given up.

    ``is_over`` once it is finished, given up or abandoned.
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
        self._stage = _Stage.OPEN
        self._failure: Exception | None = None

    def run(self) -> None:
        """Write it durably; any thread may, several wait for the first.

        Nothing is done if it was written, or abandoned.

        Raises:
            OSError: the file cannot be written. This may be called again: what is optional is not
                tried a second time.
        """
        with self._lock:
            if self._stage in (_Stage.WRITTEN, _Stage.ABANDONED):
                return
            if self._failure is not None:
                raise self._failure
            try:
                self._write()
            except Exception as error:
                if self.is_optional:
                    self._stage, self._failure = _Stage.FAILED, error
                raise
            self._stage = _Stage.WRITTEN

    def finish(self) -> None:
        """Hold it, once it is durable; waits for whoever runs it, or does it.

        The log is not told of what was abandoned.

        Raises:
            OSError: the file cannot be written; this may be called again, or ``give_up``.
        """
        self.run()
        if self._stage is _Stage.WRITTEN and not self.is_over:
            self.is_over = True
            self._apply()

    def give_up(self) -> None:
        """Go on without a write that failed, or was never run; nothing if it is over.

        Raises:
            OSError: the file cannot be read; this may be called again.
        """
        if not self.is_over:
            self._undo()
            self.is_over = True

    def end(self) -> None:
        """Hold it if it was written, else go on without it."""
        if self._stage is _Stage.WRITTEN:
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
        """Never write it, if that was not done, nor let the log know; waits for who writes."""
        with self._lock:
            if self._stage is not _Stage.WRITTEN:
                self._stage = _Stage.ABANDONED
            self.is_over = True
