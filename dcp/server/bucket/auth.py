"""Server side of SASL: PLAIN and SCRAM (RFC 5802; kv_engine ``docs/sasl.md``)."""

import hmac
from collections.abc import Mapping
from secrets import token_bytes, token_hex
from typing import Any, Final

from scramp import ScramException, ScramMechanism

from dcp.errors import ConfigError
from dcp.protocol.credentials import SCRAM_MECHANISMS, Credentials, Secret
from dcp.protocol.sasl import SCRAMP_NAMES
from dcp.server.model.refused_error import RefusedError
from dcp.wire.vocabulary import Status

_SCRAM: Final = {name.encode(): scramp_name for name, scramp_name in SCRAMP_NAMES.items()}
MECHANISMS: Final = b" ".join((*_SCRAM, b"PLAIN"))
"""SASL mechanisms by name, strongest first, as SASL_LIST_MECHS returns them."""
_ITERATIONS: Final = 4096
"""The fewest iterations that clients accept (RFC 5802; kv_engine
``cbsasl/scram-sha/scram-sha-client.cc``). A Couchbase server uses 15,000 by default
(``cbsasl/user.cc``)."""
REPLICATION_USER: Final = "@replication"
"""The user as whom the nodes of a cluster sign in to each other."""


def _node_credentials() -> Credentials:
    return Credentials(REPLICATION_USER, Secret(token_hex(16)), SCRAM_MECHANISMS[:1])


Outcome = tuple[str | None, bytes]
"""The user who proved the password, and the payload of the answer: SCRAM's final message, or
nothing after PLAIN. Without a user the client must answer the payload with a SASL_STEP."""


class UserStore:
    """Passwords of users, and the salted keys that SCRAM derives from them."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """Raises ConfigError for a password that SCRAM cannot take."""
        self._passwords = {user: Secret(password) for user, password in users.items()}
        self._salted: dict[tuple[bytes, str], tuple[bytes, bytes, bytes, int]] = {}
        # Makes the invented salts of unknown users differ between processes.
        self._pepper = token_bytes(32)
        self.node_credentials = _node_credentials()
        """Credentials with which the cluster's nodes sign in to each other. They work with SCRAM
        only, so the password never crosses the wire."""
        # Salting is slow on purpose (thousands of hashes), so it happens once, at the start.
        for name, mechanism in _SCRAM.items():
            for user, password in users.items():
                try:
                    self._salted[name, user] = _salted(mechanism, password)
                except ScramException:
                    raise ConfigError(
                        f"password of {user!r}: found characters that SASLprep (RFC 4013) forbids, "
                        "such as control characters, expected none"
                    ) from None
        password = self.node_credentials.password.reveal()
        for name in (mechanism.encode() for mechanism in self.node_credentials.mechanisms):
            self._salted[name, REPLICATION_USER] = _salted(_SCRAM[name], password)

    def __repr__(self) -> str:
        return f"UserStore({sorted(self._passwords)})"

    def certified(self, name: str) -> str | None:
        return name if name in self._passwords else None

    def check_plain(self, payload: bytes) -> str:
        """Return the user in the payload of PLAIN: ``authzid NUL user NUL password``.

        Raises RefusedError AUTH_ERROR for a wrong user or password, EINVAL for a payload of another
        form.
        """
        parts = payload.split(b"\0")
        if len(parts) != 3:
            raise RefusedError(
                Status.EINVAL, "PLAIN: the payload is not authzid NUL user NUL password"
            )
        user = parts[1].decode("utf-8", "replace")
        known = self._passwords
        # An unknown user is compared, too: the time of the answer must not tell who exists.
        same = hmac.compare_digest(known.get(user, Secret("")).reveal().encode(), parts[2])
        if not same or user not in known:
            raise RefusedError(Status.AUTH_ERROR, "PLAIN")  # clients say what AUTH_ERROR means
        return user

    def scram_info(self, mechanism: bytes, user: str) -> tuple[bytes, bytes, bytes, int]:
        """Return salt, stored key, server key and iterations for ``user``.

        An unknown user gets an invented salt and fails at the proof, like a wrong password. Clients
        therefore cannot find out which users exist.
        """
        known = self._salted.get((mechanism, user))
        if known is not None:
            return known
        # The salt of an unknown user must be the same each time, or it would betray that no such
        # user exists.
        salt = hmac.digest(self._pepper, mechanism + user.encode(), "sha256")
        size = len(next(iter(self._salted[mechanism, name] for name in self._passwords))[1])
        return salt[:16], token_bytes(size), token_bytes(size), _ITERATIONS


def _salted(scramp_name: str, password: str) -> tuple[bytes, bytes, bytes, int]:
    info: tuple[bytes, bytes, bytes, int] = ScramMechanism(scramp_name).make_auth_info(
        password, iteration_count=_ITERATIONS
    )
    return info


class SaslConversation:
    """One authentication on one connection: SASL_AUTH, then SASL_STEP if the mechanism is SCRAM.

    Both raise RefusedError: AUTH_ERROR, or EINVAL for a malformed first message.
    """

    def __init__(self, users: UserStore) -> None:
        self._users = users
        self._server: Any = None
        self._mechanism = b""
        self._user = ""

    def start(self, mechanism: bytes, payload: bytes) -> Outcome:
        self._server = None
        if mechanism == b"PLAIN":
            return self._users.check_plain(payload), b""
        if mechanism not in _SCRAM:
            name = mechanism.decode("utf-8", "replace")
            text = f'Requested mechanism "{name}" is not supported'
            raise RefusedError(Status.AUTH_ERROR, text)
        self._mechanism = mechanism
        server = ScramMechanism(_SCRAM[mechanism]).make_server(self._info_of)
        try:
            server.set_client_first(payload.decode())
            self._server = server
            return None, server.get_server_first().encode()
        except (ScramException, UnicodeDecodeError, ValueError):
            text = "SCRAM: the first message is malformed"
            raise RefusedError(Status.EINVAL, text) from None

    def step(self, mechanism: bytes, payload: bytes) -> Outcome:
        # A conversation takes one SASL_STEP; a second one must begin with SASL_AUTH again.
        server, self._server = self._server, None
        if server is None or mechanism != self._mechanism:
            text = "SASL_STEP without a SASL_AUTH of the same mechanism"
            raise RefusedError(Status.AUTH_ERROR, text)
        try:
            server.set_client_final(payload.decode())
            return self._user, server.get_server_final().encode()
        except (ScramException, UnicodeDecodeError, ValueError):
            raise RefusedError(Status.AUTH_ERROR, "SCRAM") from None

    def _info_of(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self._user = user
        return self._users.scram_info(self._mechanism, user)
