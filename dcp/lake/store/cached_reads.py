"""Caches a lake's tables: inside a block, a thread reads each table's state once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from threading import Lock, get_ident
from typing import Any, TypeVar, cast

_Change = TypeVar("_Change", bound=Callable[..., Any])


class CachedReads:
    """The open blocks of one lake; a thread has at most one.

    Outside of blocks, each access to a table reads it again. So does the first access after
    `read_anew`, which every commit of this process calls. Threads share the tables that they have
    read (`RememberedTables`).
    """

    # A block does not see commits of other processes. A commit based on such an old state fails,
    # because each commit is a compare-and-set.
    def __init__(self) -> None:
        self._ticks = count(1)
        self._begun: dict[int, int] = {}  # by thread
        self._anew_at = 0
        self._anew = Lock()

    @contextmanager
    def read_once(self, begun_at: int | None = None) -> Iterator[None]:
        """Let this thread read each table once until the block ends; inner blocks join the outer.

        A block that waits for another process must call `read_anew` afterwards. ``begun_at`` comes
        from another thread's block: this thread joins it.
        """
        if (thread := get_ident()) in self._begun:
            yield
            return
        self._begun[thread] = self.tick() if begun_at is None else begun_at
        try:
            yield
        finally:
            del self._begun[thread]

    def begun_at(self) -> int | None:
        """Return the tick when this thread's block began; None outside of blocks."""
        return self._begun.get(get_ident())

    def read_anew(self) -> None:
        """Make all threads read the tables again, also in running blocks."""
        with self._anew:
            self._anew_at = self.tick()

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Drop cached reads before and after a commit, even if it fails.

        Checks that precede the commit belong into the block.
        """
        self.read_anew()
        try:
            yield
        finally:
            self.read_anew()

    def tick(self) -> int:
        """Advance this clock and return its time. A reader calls it before it reads."""
        return next(self._ticks)

    def has_seen(self, read_at: int) -> bool:
        """Return whether a read at that time is valid for this thread's block."""
        begun = self.begun_at()
        return begun is not None and read_at > max(begun, self._anew_at)


def committing(change: _Change) -> _Change:
    """Decorate a method that changes a table: cached reads are dropped, even if it fails."""

    @wraps(change)
    def commit(table: Any, /, *asked: Any, **named: Any) -> Any:
        with table.cached_reads.committing():
            return change(table, *asked, **named)

    return cast("_Change", commit)
