"""The server's side of SASL: PLAIN and SCRAM-SHA512, -SHA256, -SHA1.

SCRAM credentials are salted once, when the producer starts. An unknown user gets a made-up salt and
fails at the proof, like a wrong password (RFC 5802; kv_engine ``docs/sasl.md``). The cluster's own
user, as whom nodes sign in at one another, has SCRAM only: its password is on no wire.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_bytes, token_hex
from typing import Any, Final

from scramp import ScramException, ScramMechanism

from dcp.protocol.credentials import SCRAM_MECHANISMS, Credentials, Secret
from dcp.protocol.sasl import SCRAMP_NAMES

_SCRAM: Final = {name.encode(): scramp_name for name, scramp_name in SCRAMP_NAMES.items()}
MECHANISMS: Final = b" ".join((*_SCRAM, b"PLAIN"))
_ITERATIONS: Final = 4096
"""The fewest that clients accept (RFC 5802; kv_engine ``cbsasl/scram-sha/scram-sha-client.cc``); a
server has 15,000 by default (``cbsasl/user.cc``)."""
REPLICATION_USER: Final = "@replication"
"""As whom the nodes of a cluster sign in at one another."""


def _node_credentials() -> Credentials:
    """Return fresh credentials; once, so that nodes salt them once."""
    return Credentials(REPLICATION_USER, Secret(token_hex(16)), SCRAM_MECHANISMS[:1])


@dataclass(frozen=True, slots=True)
class Accepted:
    """The user is who he says; ``payload`` is the server's last word (SCRAM)."""

    user: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer ``payload`` with a SASL_STEP."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused: wrong user or password, an unknown mechanism; or the message ``is_malformed``."""

    reason: str
    is_malformed: bool = False


Outcome = Accepted | Challenge | Rejected


class UserStore:
    """Users with what SCRAM stores for them. Passwords stay out of every repr."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._passwords = {user: Secret(password) for user, password in users.items()}
        self._salted: dict[tuple[bytes, str], tuple[bytes, bytes, bytes, int]] = {}
        self._pepper = token_bytes(32)
        self.node_credentials = _node_credentials()
        """What the nodes of a cluster sign in with; users cannot, and never with PLAIN."""
        for name, mechanism in _SCRAM.items():
            for user, password in users.items():
                self._salted[name, user] = _salted(mechanism, password)
        password = self.node_credentials.password.reveal()
        for name in (mechanism.encode() for mechanism in self.node_credentials.mechanisms):
            self._salted[name, REPLICATION_USER] = _salted(_SCRAM[name], password)

    def __repr__(self) -> str:
        return f"UserStore({sorted(self._passwords)})"

    def certified(self, name: str) -> str | None:
        """Return the user whom a client's certificate names; None where there is none such."""
        return name if name in self._passwords else None

    def check_plain(self, payload: bytes) -> Outcome:
        """Check ``authzid NUL user NUL password``."""
        parts = payload.split(b"\0")
        if len(parts) != 3:
            return Rejected(
                "PLAIN: the payload is not authzid NUL user NUL password", is_malformed=True
            )
        user = parts[1].decode("utf-8", "replace")
        known = self._passwords
        same = hmac.compare_digest(known.get(user, Secret("")).reveal().encode(), parts[2])
        return Accepted(user) if same and user in known else Rejected("PLAIN")

    def scram_info(self, mechanism: bytes, user: str) -> tuple[bytes, bytes, bytes, int]:
        """Return salt, stored key, server key and iterations; invented for an unknown user."""
        known = self._salted.get((mechanism, user))
        if known is not None:
            return known
        salt = hmac.digest(self._pepper, mechanism + user.encode(), "sha256")
        size = len(next(iter(self._salted[mechanism, name] for name in self._passwords))[1])
        return salt[:16], token_bytes(size), token_bytes(size), _ITERATIONS


def _salted(scramp_name: str, password: str) -> tuple[bytes, bytes, bytes, int]:
    info: tuple[bytes, bytes, bytes, int] = ScramMechanism(scramp_name).make_auth_info(
        password, iteration_count=_ITERATIONS
    )
    return info


class SaslConversation:
    """One authentication on one connection: AUTH, then perhaps STEP."""

    def __init__(self, users: UserStore) -> None:
        self._users = users
        self._server: Any = None
        self._mechanism = b""
        self._user = ""

    def start(self, mechanism: bytes, payload: bytes) -> Outcome:
        """Take SASL_AUTH."""
        self._server = None
        if mechanism == b"PLAIN":
            return self._users.check_plain(payload)
        if mechanism not in _SCRAM:
            name = mechanism.decode("utf-8", "replace")
            return Rejected(f'Requested mechanism "{name}" is not supported')
        self._mechanism = mechanism
        server = ScramMechanism(_SCRAM[mechanism]).make_server(self._info_of)
        try:
            server.set_client_first(payload.decode())
            self._server = server
            return Challenge(server.get_server_first().encode())
        except (ScramException, UnicodeDecodeError, ValueError):
            return Rejected("SCRAM: the first message is malformed", is_malformed=True)

    def step(self, mechanism: bytes, payload: bytes) -> Outcome:
        """Take SASL_STEP."""
        server, self._server = self._server, None
        if server is None or mechanism != self._mechanism:
            return Rejected("SASL_STEP without a SASL_AUTH of the same mechanism")
        try:
            server.set_client_final(payload.decode())
            return Accepted(self._user, server.get_server_final().encode())
        except (ScramException, UnicodeDecodeError, ValueError):
            return Rejected("SCRAM")

    def _info_of(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._user = user
        return self._users.scram_info(self._mechanism, user)
