from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Functions that are called with each event of one kind, in the order of their addition.

    Any thread may add or remove a function during an event.
    """

    def __init__(self) -> None:
        # Each change makes a new tuple, so an event that is under way goes on over the old one.
        self._listeners: tuple[Callable[P, object], ...] = ()

    def add(self, listener: Callable[P, object]) -> None:
        self._listeners += (listener,)

    def remove(self, listener: Callable[P, object]) -> None:
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Call all functions, up to the first exception, which goes to the caller."""
        for listener in self._listeners:
            listener(*arguments, **named)
