"""What the first process of a cluster and one that takes vbuckets over tell each other of it."""

import json
from dataclasses import dataclass
from typing import Self

from dcp.errors import RemoteProtocolError
from dcp.wire.json_tree import json_tree


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """Node ``target`` is to take vbuckets over from ``source``; ``number`` tells moves apart."""

    number: int
    source: int
    target: int
    vbuckets: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the JSON."""
        return json.dumps([self.number, self.source, self.target, self.vbuckets]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what ``encode`` made of it.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        try:
            number, source, target, vbuckets = json_tree(data)
            return cls(int(number), int(source), int(target), tuple(map(int, vbuckets)))
        except (ValueError, TypeError) as error:
            raise RemoteProtocolError(f"order to take vbuckets: malformed: {error}") from error


@dataclass(frozen=True, slots=True)
class MoveReport:
    """How far a move is: which vbuckets arrived whole, and whether more will; ``error`` says why.

    What arrived waits for the map; until then nobody is shown it.
    """

    number: int = 0
    taken: tuple[int, ...] = ()
    is_over: bool = True
    error: str = ""

    def encode(self) -> bytes:
        """Return the JSON."""
        return json.dumps([self.number, self.taken, self.is_over, self.error]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what ``encode`` made of it.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        try:
            number, taken, is_over, error = json_tree(data)
            return cls(int(number), tuple(map(int, taken)), bool(is_over), str(error))
        except (ValueError, TypeError) as error:
            raise RemoteProtocolError(f"report of a move: malformed: {error}") from error
