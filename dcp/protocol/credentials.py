"""User name, password, and the SASL mechanisms that may carry them.

A password never shows in a repr, a log line or a traceback, and never leaves its process but to a
server: it lives in a ``Secret``, which cannot be pickled. Its text is revealed (``reveal``) only to
sign in to a server, and where the reference producer and the relay authenticate a client.
"""

from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, NoReturn

from dcp.protocol.salted_passwords import SaltedPasswords

PLAIN: Final = "PLAIN"
SCRAM_MECHANISMS: Final = ("SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1")
"""Mechanisms that never send the password, strongest first."""
ALL_MECHANISMS: Final = (*SCRAM_MECHANISMS, PLAIN)
"""With PLAIN, which sends the password as it is: for TLS, or where the operator permits it."""


class Secret:
    """A text that must not be seen: its repr and str are ``***``, and it cannot be pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Hide ``text``."""
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> NoReturn:
        """Refuse to be part of what is sent or stored, a Spark task for one.

        Raises:
            TypeError: always.

        """
        raise TypeError("a secret stays in its process: send where to find it, not the secret")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(
            self._text.encode(), other._text.encode()
        )

    __hash__ = None  # type: ignore[assignment]  # nothing should key a table by a secret


@dataclass(frozen=True, slots=True)
class Credentials:
    """User, password and the mechanisms allowed, strongest first.

    Connections that share one share what SCRAM derives from the password. ``by_certificate``: the
    client's TLS certificate says who signs in, and SASL is left out; see ``of_certificate``.

    Raises:
        ValueError: a mechanism that we do not know, or none at all.
    """

    username: str
    password: Secret
    mechanisms: tuple[str, ...] = SCRAM_MECHANISMS
    salted: SaltedPasswords = field(default_factory=SaltedPasswords, repr=False, compare=False)
    by_certificate: bool = False

    @classmethod
    def of_certificate(cls) -> "Credentials":
        """Return those of a client that its certificate authenticates."""
        return cls("", Secret(""), by_certificate=True)

    @property
    def who(self) -> str:
        """The user who signs in, in words for messages."""
        if self.by_certificate:
            return "the user that the client certificate names"
        return f"user {self.username!r}"

    def __post_init__(self) -> None:
        """Reject unknown mechanisms."""
        unknown = [name for name in self.mechanisms if name not in ALL_MECHANISMS]
        if unknown or not self.mechanisms:
            raise ValueError(
                f"mechanisms: found {', '.join(unknown) or 'none'}, "
                f"expected some of {', '.join(ALL_MECHANISMS)}"
            )
