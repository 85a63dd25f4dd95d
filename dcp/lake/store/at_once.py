"""Asks an object store for many things at once: each answer takes its time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

MOST_AT_ONCE: Final = 16

_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")


def at_once(ask: Callable[[_Asked], _Found], of: Sequence[_Asked]) -> list[_Found]:
    """Return the answers in order; after an exception, which is raised, asks for nothing more."""
    if len(of) == 1:
        return [ask(of[0])]
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return list(pool.map(ask, of))
