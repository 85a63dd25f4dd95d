"""Long work for one request, done in steps between which other connections have their turn."""

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class LongWork(Generic[T]):
    """``steps`` yields between its steps and returns what ``then`` goes on with."""

    def __init__(self, steps: Generator[None, None, T], then: Callable[[T], None]) -> None:
        self._steps, self._then = steps, then
        self._found: list[T] = []

    def step(self) -> bool:
        """Do the next step; return whether that was the last."""
        try:
            next(self._steps)
        except StopIteration as end:
            self._found.append(end.value)
        return bool(self._found)

    def finish(self) -> None:
        """Continue with the result, after the last step."""
        (found,) = self._found
        self._then(found)

    def finish_at_once(self) -> None:
        """Do all steps that are left, and go on."""
        while not self.step():
            pass
        self.finish()
