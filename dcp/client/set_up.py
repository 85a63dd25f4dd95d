"""Describes the running set-up of a connection, for messages about its failure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dcp.protocol.bootstrap import Bootstrap

TCP: Final = "TCP connection"
TLS: Final = "TLS handshake"


@dataclass(frozen=True, slots=True)
class SetUpStep:
    """A step that begins, after which all earlier ones are done, and the results so far.

    ``name`` is ``TCP``, ``TLS`` or a bootstrap step's; empty at the end. ``certificate`` is the
    node's, from ``ssl.SSLSocket.getpeercert``. It and ``tls_version`` are empty without TLS, and
    until the handshake is done.
    """

    name: str
    progress: Bootstrap
    tls_version: str
    certificate: Mapping[str, Any]
