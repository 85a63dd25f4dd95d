"""Parses a node's address as people write it: ``host``, ``host:port``, ``couchbase://host:port``.

IPv6 hosts stand in brackets (``[::1]:11210``) and are returned without them.
"""

from ipaddress import IPv6Address
from typing import Final

from dcp.errors import ConfigError

PLAIN_PORT: Final = 11210
TLS_PORT: Final = 11207
_HTTP_PORTS: Final = (8091, 18091)
_NEVER_IN_HOSTS: Final = "[]/@,\"'"


def parse_seed(text: str, *, tls: bool = False) -> tuple[str, int]:
    """Return host and port; without a port the data service's, encrypted where ``tls`` is.

    Raises:
        ConfigError: the text is no address, or one where no data service can be.
    """
    shown = text.rpartition("@")[2]  # what stands before it may be a password
    try:
        scheme, mark, rest = text.strip().rpartition("://")
        if mark and scheme not in ("couchbase", "couchbases"):
            raise ValueError(f"found {scheme}://, expected couchbase:// or nothing")
        if scheme == "couchbases" and not tls:
            raise ValueError(
                "found couchbases://, which is TLS, expected that to be switched on too "
                "(source.tls = true, or --tls where the command has it)"
            )
        if "@" in rest:
            raise ValueError("found a user in it, expected the user and password apart from it")
        address, sign, more = _behind(rest.removesuffix("/") if mark else rest)
        if sign:
            raise ValueError(
                f"found {sign + more!r} behind the address, expected nothing: bucket and options "
                "have settings of their own"
            )
        host, written = _split(address)
        port = _port(written) if written is not None else TLS_PORT if tls else PLAIN_PORT
        check_address(host, port)
    except ValueError as error:
        raise ConfigError(
            f"node address {shown!r}: {error}; write host:port, for example 127.0.0.1:{PLAIN_PORT}"
        ) from None
    if port in _HTTP_PORTS:
        raise ConfigError(
            f"node address {shown!r}: found port {port}, where nodes speak HTTP, expected the data "
            f"service's: {PLAIN_PORT}, or {TLS_PORT} with TLS"
        )
    return host, port


def check_address(host: str, port: int) -> None:
    """Raise ValueError for what no socket can connect to."""
    if not _is_host(host):
        raise ValueError(f"found host {host!r}, expected a host name or IP")
    if type(port) is not int or not 1 <= port <= 65535:
        raise ValueError(f"found port {port!r}, expected 1 to 65535")


def _is_host(text: str) -> bool:
    if not text or any(sign.isspace() or sign in _NEVER_IN_HOSTS for sign in text):
        return False
    try:
        return bool(IPv6Address(text)) if ":" in text else bool(text.encode("idna"))
    except ValueError:  # UnicodeError is one
        return False


def _behind(text: str) -> tuple[str, str, str]:
    """Return an address, and the sign and the rest of what stands behind it."""
    end = min((text.index(sign) for sign in "/?" if sign in text), default=len(text))
    return text[:end], text[end : end + 1], text[end + 1 :]


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
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise ValueError(f"found port {text!r}, expected 1 to 65535")
    return int(text)
