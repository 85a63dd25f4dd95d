"""Assigns log files to vbuckets and their replicas.

When a replica becomes active, its log file becomes the vbucket's, and the old one belongs to
nobody. No file is renamed, so one saved record switches all disk logs at once.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_NAME: Final = re.compile(r"vb_\d+(?:\.(\d+))?\.log")


def is_disk_log_name(found: object) -> bool:
    return isinstance(found, str) and _NAME.fullmatch(found) is not None


def first_names(vbuckets: int) -> list[str]:
    return [f"vb_{vbucket}.log" for vbucket in range(vbuckets)]


class DiskLogNames:
    def __init__(
        self,
        names: Sequence[str],
        replicas: Sequence[Sequence[tuple[int, str]]],
        found: Iterable[str],
    ) -> None:
        """Restore the saved names. New names never reuse one that was ``found`` in the folder."""
        self._names = list(names)
        self._replicas = {
            (node, vbucket): name for vbucket, row in enumerate(replicas) for node, name in row
        }
        serials = (_NAME.fullmatch(name) for name in (*found, *self.known))
        self._serial = max((int(each[1] or 0) for each in serials if each is not None), default=0)

    @property
    def known(self) -> set[str]:
        return {*self._names, *self._replicas.values()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    @property
    def replicas(self) -> tuple[tuple[tuple[int, str], ...], ...]:
        """By vbucket: node and disk log name of each replica."""
        rows: list[list[tuple[int, str]]] = [[] for _ in self._names]
        for (node, vbucket), name in sorted(self._replicas.items()):
            rows[vbucket].append((node, name))
        return tuple(tuple(row) for row in rows)

    def of(self, vbucket: int) -> str:
        return self._names[vbucket]

    def of_replica(self, node: int, vbucket: int) -> str:
        """Return the disk log name of a replica; choose a new one if it has none."""
        if (node, vbucket) not in self._replicas:
            self._serial += 1
            self._replicas[node, vbucket] = f"vb_{vbucket}.{self._serial}.log"
        return self._replicas[node, vbucket]

    def drop_replica(self, node: int, vbucket: int) -> None:
        self._replicas.pop((node, vbucket), None)

    def keep_replicas(self, named: Iterable[tuple[int, int]]) -> None:
        self._replicas = {each: self._replicas[each] for each in named if each in self._replicas}

    def install(self, node: int, vbucket: int) -> None:
        self._names[vbucket] = self._replicas.pop((node, vbucket))

    def copy(self) -> "DiskLogNames":
        """Return a copy, as a backup; it never reuses a name."""
        copied = DiskLogNames(self._names, self.replicas, ())
        copied._serial = self._serial
        return copied
