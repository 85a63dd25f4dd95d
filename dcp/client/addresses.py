"""Where a data node listens: host and port, parsed from text and printed as text.

IPv6 hosts are written in brackets (``[::1]:11210``) and kept without them.
"""

from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from dcp.errors import ConfigError

PLAIN_PORT: Final = 11210
TLS_PORT: Final = 11207
_NEVER_IN_HOSTS: Final = "[]/@\"'"


@dataclass(frozen=True, slots=True, order=True)
class NodeAddress:
    """Host name or address of a data node, and its port for memcached's binary protocol."""

    host: str
    port: int

    def __post_init__(self) -> None:
        """Reject what no socket can connect to."""
        if not _is_host(self.host):
            raise ValueError(f"found host {self.host!r}, expected a host name or IP")
        if type(self.port) is not int or not 1 <= self.port <= 65535:
            raise ValueError(f"found port {self.port!r}, expected 1 to 65535")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int = PLAIN_PORT) -> "NodeAddress":
        """Read ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``.

        Raises:
            ConfigError: the text is none of these.
        """
        host, port = _split(text.strip())
        try:
            return cls(host, _port(port) if port is not None else default_port)
        except ValueError as error:
            raise ConfigError(
                f"node address {text!r}: {error}; write host:port, for example 127.0.0.1:11210"
            ) from None


def parse_seeds(
    seeds: list[str] | tuple[str, ...], default_port: int = PLAIN_PORT
) -> tuple[NodeAddress, ...]:
    """Read a list of seed addresses, without repeating one.

    Raises:
        ConfigError: the list is empty, or an entry is no address.
    """
    if not seeds:
        raise ConfigError("seeds: found none, expected at least one host:port")
    return tuple(dict.fromkeys(NodeAddress.parse(seed, default_port) for seed in seeds))


def _is_host(text: str) -> bool:
    if not text or any(sign.isspace() or sign in _NEVER_IN_HOSTS for sign in text):
        return False
    try:
        return ":" not in text or bool(IPv6Address(text))
    except ValueError:
        return False


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, closing, rest = text[1:].partition("]")
        if not closing or (rest and not rest.startswith(":")):
            return "", None
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"found port {text!r}, expected a number")
    return int(text)
