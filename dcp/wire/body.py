"""The base of all message bodies, and the three kinds that any opcode can have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Body:
    """Base of all message bodies."""


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """A command or answer that is all header."""


@dataclass(frozen=True, slots=True)
class Refusal(Body):
    """An answer with a status that is no success; ``value`` may be a JSON error context."""

    value: bytes = b""
    extras: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Unknown(Body):
    """A command that no row of the codec table describes: kept whole, to be counted and ignored."""

    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
