"""SASL from the client's side: choosing a mechanism, PLAIN in one step, SCRAM in two.

SCRAM's messages are the ``scramp`` library's; what takes thousands of hashes is done once for all
connections of the same credentials (``salted_passwords.py``). The exchange is a value: each step
returns a new one, and the nonce is an argument, so the same inputs always give the same bytes. The
server must prove by its signature that it knows the password too; one that cannot is refused.
Source: RFC 5802, kv_engine ``docs/sasl.md``.
"""

import hmac
import re
from base64 import b64encode
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from scramp import ScramClient, ScramException
from scramp.core import ClientStage

from dcp.errors import AuthenticationError
from dcp.printable import printable
from dcp.protocol.credentials import ALL_MECHANISMS, PLAIN, Credentials
from dcp.protocol.salted_passwords import SaltedPasswords

SCRAMP_NAMES: Final = {
    "SCRAM-SHA512": "SCRAM-SHA-512",
    "SCRAM-SHA256": "SCRAM-SHA-256",
    "SCRAM-SHA1": "SCRAM-SHA-1",
}
"""Couchbase's names of the mechanisms, and scramp's; the strongest first."""
LEAST_ITERATIONS: Final = 4000
"""What Couchbase servers up to 7.x use by default; RFC 7677 and scramp ask for 4096."""
_SCRAMP_LEAST_ITERATIONS: Final = 4096


def choose_mechanism(offered: bytes, allowed: tuple[str, ...]) -> str:
    """Return the strongest mechanism that is both offered and allowed.

    Raises:
        AuthenticationError: there is none. A server (or someone between us and it) that offers only
            PLAIN does not get the password unless PLAIN is allowed.
    """
    names = offered.decode("ascii", "replace").split()
    for name in ALL_MECHANISMS:
        if name in allowed and name in names:
            return name
    raise AuthenticationError(
        f"SASL mechanisms: found {', '.join(names) or 'none'} offered, "
        f"expected one of {', '.join(allowed)}"
        + ("" if PLAIN in allowed else " (PLAIN is allowed over TLS, or by setting)")
    )


@dataclass(frozen=True, slots=True)
class SaslExchange:
    """One authentication under way; ``payload`` is to be sent next."""

    mechanism: str
    payload: bytes = field(repr=False)
    _scram: ScramClient | None = field(default=None, repr=False)

    @classmethod
    def start(cls, mechanism: str, credentials: Credentials, nonce: str) -> "SaslExchange":
        """Begin; ``nonce`` must be fresh, unpredictable, and printable ASCII without commas.

        Raises:
            AuthenticationError: a user name, password or nonce that SASL cannot carry.
        """
        if not credentials.username:
            raise AuthenticationError("found no user name, expected the user to sign in as")
        if mechanism == PLAIN:
            username, password = credentials.username, credentials.password.reveal()
            if "\0" in username or "\0" in password:
                raise AuthenticationError("SASL PLAIN: found NUL in the user name or password")
            return cls(mechanism, f"\0{username}\0{password}".encode())
        try:
            scram = _ScramClient(mechanism, credentials, nonce)
            return cls(mechanism, scram.get_client_first().encode(), scram)
        except (ScramException, ValueError) as error:
            raise AuthenticationError(f"SASL {mechanism}: {printable(str(error))}") from None

    def answer(self, challenge: bytes) -> "SaslExchange":
        """Return the exchange whose payload answers the server's first message.

        Raises:
            AuthenticationError: the challenge is malformed, belongs to another exchange, or asks
                for so few iterations that a listener could find the password.
        """
        if self._scram is None:
            raise AuthenticationError(f"SASL {self.mechanism}: found a challenge, expected none")
        scram = copy(self._scram)
        try:
            _take_challenge(scram, challenge.decode())
            return SaslExchange(self.mechanism, scram.get_client_final().encode(), scram)
        except (ScramException, ValueError) as error:
            raise AuthenticationError(
                f"SASL {self.mechanism} challenge: {printable(str(error))}"
            ) from None

    def verify(self, final: bytes) -> None:
        """Check the server's signature (PLAIN has none).

        Raises:
            AuthenticationError: the server does not know the password.
        """
        if self._scram is None:
            return
        try:
            copy(self._scram).set_server_final(final.decode())
        except (ScramException, ValueError) as error:
            raise AuthenticationError(
                f"SASL {self.mechanism}: the server did not prove that it knows the password: "
                f"{printable(str(error))}"
            ) from None


class _ScramClient(ScramClient):  # type: ignore[misc]  # scramp has no types
    """scramp's client, but for the last message: it would salt the password anew for each."""

    def __init__(self, mechanism: str, credentials: Credentials, nonce: str) -> None:
        password = credentials.password.reveal()
        super().__init__([SCRAMP_NAMES[mechanism]], credentials.username, password, c_nonce=nonce)
        self._salted: SaltedPasswords = credentials.salted

    def get_client_final(self) -> str:
        """Return the proof that we know the password (RFC 5802, section 3)."""
        self._set_stage(ClientStage.get_client_final)
        name: str = self.hf().name
        salted = self._salted.derive(
            name, bytes(self.password), bytes(self.salt), int(self.iterations)
        )
        client_key = hmac.digest(salted, b"Client Key", name)
        without_proof = f"c={b64encode(bytes(self.gs2_header)).decode()},r={self.nonce}"
        said = f"{self.client_first_bare},{self.server_first},{without_proof}".encode()
        signature = hmac.digest(self.hf(client_key).digest(), said, name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", name)
        self.server_signature = hmac.digest(server_key, said, name)
        return f"{without_proof},p={b64encode(proof).decode()}"


def _take_challenge(scram: ScramClient, message: str) -> None:
    """Hand the challenge to scramp, also where its iterations are Couchbase's older default."""
    found = re.search(r",i=([1-9][0-9]{0,8})$", message)
    iterations = int(found[1]) if found else 0
    if not found or not LEAST_ITERATIONS <= iterations < _SCRAMP_LEAST_ITERATIONS:
        scram.set_server_first(message)  # which refuses too few, too many, and malformed ones
        return
    scram.set_server_first(f"{message[: found.start()]},i={_SCRAMP_LEAST_ITERATIONS}")
    scram.server_first, scram.iterations = message, iterations
