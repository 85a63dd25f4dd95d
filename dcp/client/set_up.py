"""Describes the running set-up of a connection, for messages about its failure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dcp.protocol.bootstrap import Bootstrap

TCP: Final = "TCP connection"
TLS: Final = "TLS handshake"


@dataclass(frozen=True, slots=True)
class Line:
    """A connected socket: its encryption, and the identity of the other side.

    ``certificate`` is that of ``ssl.SSLSocket.getpeercert``; both are empty without TLS.
    """

    tls_version: str = ""
    certificate: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetUpStep:
    """A step that begins, after which all earlier ones are done, and the results so far.

    ``name`` is ``TCP``, ``TLS`` or a bootstrap step's; empty at the end. ``line`` is None until the
    socket is connected.
    """

    name: str
    progress: Bootstrap
    line: Line | None
