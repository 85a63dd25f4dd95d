"""Listeners of one kind of event: who hears of it is added when it is there, and may go again."""

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Listeners(Generic[P]):
    """Functions that are called with each event, in the order in which they were added.

    Any thread may add or remove one while another tells of an event: the list is never changed.
    """

    def __init__(self) -> None:
        self._listeners: tuple[Callable[P, object], ...] = ()

    def add(self, listener: Callable[P, object]) -> None:
        """Call this one too from now on."""
        self._listeners += (listener,)

    def remove(self, listener: Callable[P, object]) -> None:
        """Do not call this one any more."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> None:
        """Tell all of an event; what one raises is raised, and the rest is not told."""
        for listener in self._listeners:
            listener(*arguments, **named)
