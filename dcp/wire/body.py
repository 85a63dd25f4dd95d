"""The base of all message bodies, and three kinds that any opcode can have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Body:
    pass


@dataclass(frozen=True, slots=True)
class Empty(Body):
    """A command or answer without extras, key and value."""


@dataclass(frozen=True, slots=True)
class Refusal(Body):
    """An answer with an error status."""

    value: bytes = b""
    """May be a JSON object that explains the error."""
    extras: bytes = b""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Unknown(Body):
    """A command that the codec table lacks, kept whole so that the receiver can count and ignore
    it.
    """

    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
