"""Describes the set-up of a connection while it is under way, for whoever explains what fails."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dcp.protocol.bootstrap import BootstrapProgress

TCP: Final = "TCP connection"
TLS: Final = "TLS handshake"


@dataclass(frozen=True, slots=True)
class Line:
    """A socket that is connected: its encryption, and who the other side says it is.

    ``certificate`` is as ``ssl.SSLSocket.getpeercert`` has it; both are empty without TLS.
    """

    tls_version: str = ""
    certificate: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetUpStep:
    """A step that begins, so that those before it are done, and what they came to.

    ``name`` is ``TCP``, ``TLS`` or a bootstrap step's; empty when all is done. ``line`` is None
    until the socket is connected.
    """

    name: str
    progress: BootstrapProgress
    line: Line | None
