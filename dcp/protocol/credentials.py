"""User name, password, and the SASL mechanisms that may carry them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import pbkdf2_hmac
from hmac import compare_digest
from typing import Final, NoReturn

PLAIN: Final = "PLAIN"
SCRAM_MECHANISMS: Final = ("SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1")
"""Mechanisms that never send the password, strongest first."""
ALL_MECHANISMS: Final = (*SCRAM_MECHANISMS, PLAIN)
"""PLAIN sends the password itself: for TLS, or if the operator permits it."""
MOST_SALTED: Final = 16
"""Salted passwords that are kept: a server may send another salt each time."""


class Secret:
    """A text that must stay hidden: its repr and str are ``***``, and it cannot be pickled.

    Only code that signs in to a server or authenticates a client may ``reveal`` it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> NoReturn:
        # Spark would pickle it into a task, which leaves the process.
        raise TypeError("a secret stays in its process: send where to find it, not the secret")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(
            self._text.encode(), other._text.encode()
        )

    __hash__ = None  # type: ignore[assignment]  # nothing should key a table by a secret


Salting = Callable[[str, bytes, bytes, int], bytes]
"""Returns SCRAM's salted password (``Hi`` in RFC 5802) from a hash's name, password, salt and
iterations."""


def _salting() -> Salting:
    return lru_cache(MOST_SALTED)(pbkdf2_hmac)


@dataclass(frozen=True, slots=True)
class Credentials:
    """User, password and the allowed mechanisms, strongest first.

    Raises ValueError for no or an unknown mechanism.
    """

    username: str
    password: Secret
    mechanisms: tuple[str, ...] = SCRAM_MECHANISMS
    salted: Salting = field(default_factory=_salting, repr=False, compare=False)
    """A call costs thousands of hashes, and nodes use one salt per user. So all connections with
    these credentials share the results, which are as secret as the password."""
    by_certificate: bool = False
    """The client's TLS certificate names the user, so there is no SASL exchange."""

    @classmethod
    def of_certificate(cls) -> "Credentials":
        """Return the credentials of a client with a TLS certificate."""
        return cls("", Secret(""), by_certificate=True)

    @property
    def who(self) -> str:
        """The user who signs in, for messages to people."""
        if self.by_certificate:
            return "the user that the client certificate names"
        return f"user {self.username!r}"

    def __post_init__(self) -> None:
        unknown = [name for name in self.mechanisms if name not in ALL_MECHANISMS]
        if unknown or not self.mechanisms:
            raise ValueError(
                f"mechanisms: found {', '.join(unknown) or 'none'}, "
                f"expected some of {', '.join(ALL_MECHANISMS)}"
            )
