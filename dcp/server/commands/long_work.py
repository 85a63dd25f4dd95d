from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class LongWork(Generic[T]):
    """Work for one request in steps, between which other connections get their turn.

    ``steps`` yields after each step and returns the argument of ``then``.
    """

    def __init__(self, steps: Generator[None, None, T], then: Callable[[T], None]) -> None:
        self._steps, self._then = steps, then
        self._found: list[T] = []

    def step(self) -> bool:
        """Do the next step; return True if it was the last."""
        try:
            next(self._steps)
        except StopIteration as end:
            self._found.append(end.value)
        return bool(self._found)

    def finish(self) -> None:
        (found,) = self._found
        self._then(found)

    def finish_at_once(self) -> None:
        while not self.step():
            pass
        self.finish()
