"""SASL on the client's side: choosing a mechanism, PLAIN in one step, SCRAM in two.

An exchange is a value, and the nonce an argument: equal inputs give equal bytes. Source: RFC 5802,
kv_engine ``docs/sasl.md``.
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

SCRAMP_NAMES: Final = {
    "SCRAM-SHA512": "SCRAM-SHA-512",
    "SCRAM-SHA256": "SCRAM-SHA-256",
    "SCRAM-SHA1": "SCRAM-SHA-1",
}
"""Couchbase's names of the mechanisms and scramp's, the strongest first."""
LEAST_ITERATIONS: Final = 4000
"""The default of Couchbase servers up to 7.x; RFC 7677 and scramp ask for 4096."""
_SCRAMP_LEAST_ITERATIONS: Final = 4096


def choose_mechanism(offered: bytes, allowed: tuple[str, ...]) -> str:
    """Return the strongest mechanism that is both offered and allowed.

    Raises AuthenticationError if there is none.
    """
    # An attacker in between may offer only PLAIN to get the password, so it must be allowed
    # explicitly.
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
    """One authentication under way."""

    mechanism: str
    payload: bytes = field(repr=False)
    """To be sent next."""
    _scram: ScramClient | None = field(default=None, repr=False)

    @classmethod
    def start(cls, mechanism: str, credentials: Credentials, nonce: str) -> "SaslExchange":
        """Begin; ``nonce`` must be fresh, unpredictable, and printable ASCII without commas.

        Raises AuthenticationError for a user name, password or nonce that SASL cannot carry.
        """
        if not credentials.username:
            raise AuthenticationError("found no user name, expected one")
        if mechanism == PLAIN:
            username, password = credentials.username, credentials.password.reveal()
            # NUL separates the parts of a PLAIN message (RFC 4616).
            if "\0" in username or "\0" in password:
                raise AuthenticationError("SASL PLAIN: found NUL in the user name or password")
            return cls(mechanism, f"\0{username}\0{password}".encode())
        try:
            scram = _ScramClient(mechanism, credentials, nonce)
            return cls(mechanism, scram.get_client_first().encode(), scram)
        except (ScramException, ValueError) as error:
            raise AuthenticationError(f"SASL {mechanism}: {printable(str(error))}") from None

    def answer(self, challenge: bytes) -> "SaslExchange":
        """Return the exchange with the answer to the server's first message.

        Raises AuthenticationError if the challenge is malformed, belongs to another exchange, or
        asks for too few iterations. With few an eavesdropper could find the password.
        """
        if self._scram is None:
            raise AuthenticationError(f"SASL {self.mechanism}: found a challenge, expected none")
        # scramp's client changes with each call, but an exchange is a value.
        scram = copy(self._scram)
        try:
            _take_challenge(scram, challenge.decode())
            return SaslExchange(self.mechanism, scram.get_client_final().encode(), scram)
        except (ScramException, ValueError) as error:
            raise AuthenticationError(
                f"SASL {self.mechanism} challenge: {printable(str(error))}"
            ) from None

    def verify(self, final: bytes) -> None:
        """Check the server's signature, which PLAIN does not have.

        Raises AuthenticationError if the server has not proved that it knows the password.
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
    """scramp's client with another last message: it takes the salted password from a cache."""

    def __init__(self, mechanism: str, credentials: Credentials, nonce: str) -> None:
        password = credentials.password.reveal()
        super().__init__([SCRAMP_NAMES[mechanism]], credentials.username, password, c_nonce=nonce)
        self._salted = credentials.salted

    def get_client_final(self) -> str:
        """Return the proof that we know the password (RFC 5802, section 3)."""
        self._set_stage(ClientStage.get_client_final)
        name: str = self.hf().name
        salted = self._salted(name, bytes(self.password), bytes(self.salt), int(self.iterations))
        client_key = hmac.digest(salted, b"Client Key", name)
        without_proof = f"c={b64encode(bytes(self.gs2_header)).decode()},r={self.nonce}"
        said = f"{self.client_first_bare},{self.server_first},{without_proof}".encode()
        signature = hmac.digest(self.hf(client_key).digest(), said, name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", name)
        self.server_signature = hmac.digest(server_key, said, name)
        return f"{without_proof},p={b64encode(proof).decode()}"


def _take_challenge(scram: ScramClient, message: str) -> None:
    """Pass the challenge to scramp, which would refuse Couchbase's older default of iterations."""
    found = re.search(r",i=([1-9][0-9]{0,8})$", message)
    iterations = int(found[1]) if found else 0
    if not found or not LEAST_ITERATIONS <= iterations < _SCRAMP_LEAST_ITERATIONS:
        scram.set_server_first(message)  # refuses malformed messages and wrong iterations
        return
    scram.set_server_first(f"{message[: found.start()]},i={_SCRAMP_LEAST_ITERATIONS}")
    # The proof covers the server's own message, so the real one goes back in.
    scram.server_first, scram.iterations = message, iterations
