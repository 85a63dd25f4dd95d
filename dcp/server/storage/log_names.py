"""Assigns the logs in a data folder: to each vbucket, and to each copy on its node.

A copy that becomes the vbucket stays where it is: its log is the vbucket's from then on, and the
one before is nobody's. So nothing is renamed, and one saved record says at once what all logs are.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_NAME: Final = re.compile(r"vb_\d+(?:\.(\d+))?\.log")


def is_log_name(found: object) -> bool:
    """Return whether it can be the name of a log."""
    return isinstance(found, str) and _NAME.fullmatch(found) is not None


def first_names(vbuckets: int) -> list[str]:
    """Return the names of the logs of vbuckets that nobody took the place of."""
    return [f"vb_{vbucket}.log" for vbucket in range(vbuckets)]


class LogNames:
    """The names by vbucket, and by node and vbucket."""

    def __init__(
        self,
        names: Sequence[str],
        copies: Sequence[Sequence[tuple[int, str]]],
        found: Iterable[str],
    ) -> None:
        """Take what was saved. No name that was ``found`` in the folder is given anew."""
        self._names = list(names)
        self._copies = {
            (node, vbucket): name for vbucket, row in enumerate(copies) for node, name in row
        }
        serials = (_NAME.fullmatch(name) for name in (*found, *self.known))
        self._serial = max((int(each[1] or 0) for each in serials if each is not None), default=0)

    @property
    def known(self) -> set[str]:
        """The names of all logs that are somebody's."""
        return {*self._names, *self._copies.values()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the vbuckets' logs."""
        return tuple(self._names)

    @property
    def copies(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """The nodes of each vbucket's copies, with the names of their logs."""
        rows: list[list[tuple[int, str]]] = [[] for _ in self._names]
        for (node, vbucket), name in sorted(self._copies.items()):
            rows[vbucket].append((node, name))
        return tuple(tuple(row) for row in rows)

    def of(self, vbucket: int) -> str:
        """Return the name of a vbucket's log."""
        return self._names[vbucket]

    def of_copy(self, node: int, vbucket: int) -> str:
        """Return the name of a copy's log; a new one where it has none."""
        if (node, vbucket) not in self._copies:
            self._serial += 1
            self._copies[node, vbucket] = f"vb_{vbucket}.{self._serial}.log"
        return self._copies[node, vbucket]

    def drop_copy(self, node: int, vbucket: int) -> None:
        """Forget a copy."""
        self._copies.pop((node, vbucket), None)

    def keep_copies(self, named: Iterable[tuple[int, int]]) -> None:
        """Know no other copies than these."""
        self._copies = {place: self._copies[place] for place in named if place in self._copies}

    def install(self, node: int, vbucket: int) -> None:
        """Let a copy's log be the vbucket's."""
        self._names[vbucket] = self._copies.pop((node, vbucket))

    def copy(self) -> "LogNames":
        """Return the same names, to go back to; no name that was given is given anew."""
        copied = LogNames(self._names, self.copies, ())
        copied._serial = self._serial
        return copied
