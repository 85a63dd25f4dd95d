"""Sends many requests to an object store at the same time, because each has a long latency."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

MOST_AT_ONCE: Final = 16

_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")


def at_once(ask: Callable[[_Asked], _Found], of: Sequence[_Asked]) -> list[_Found]:
    """Return the results in order. After an exception, it starts no further call."""
    if len(of) == 1:
        return [ask(of[0])]
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        return list(pool.map(ask, of))
