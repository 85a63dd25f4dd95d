"""Parses the place of a cluster as users write it: node addresses and connection strings.

A node is ``host``, ``host:port`` or ``couchbase://host:port``. A connection string has several
nodes, and options: ``couchbases://h1,h2:11207?network=external`` (Couchbase's SDK-RFC 11). IPv6
hosts stand in brackets (``[::1]:11210``), and values have them without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from dcp.errors import ConfigError

PLAIN_PORT: Final = 11210
TLS_PORT: Final = 11207
HTTP_PORT: Final = 8091
HTTPS_PORT: Final = 18091
_DATA_PORTS: Final = (PLAIN_PORT, TLS_PORT)
_HTTP_PORTS: Final = (HTTP_PORT, HTTPS_PORT)
_NEVER_IN_HOSTS: Final = "[]/@,\"'"

DEFAULT_SEED: Final = f"127.0.0.1:{PLAIN_PORT}"
DEFAULT_BUCKET: Final = "default"
AUTO_NETWORK: Final = "auto"
"""The network in which the client found the node that sends the addresses."""
DEFAULT_NETWORK: Final = "default"
"""The addresses by which a cluster's nodes know one another."""
_NETWORK: Final = "network"
_BOOTSTRAP: Final = "bootstrap_on"
_BOOTSTRAPS: Final = ("cccp", "http")
"""gocbcore's names for a map from the data service's port, and one over HTTP."""


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The place of a cluster: ``hosts`` as written, each with its port or None.

    ``network`` selects the nodes' addresses. ``over_http``: the hosts send the cluster map at their
    HTTP ports, not at the data service's.
    """

    hosts: tuple[tuple[str, int | None], ...]
    tls: bool = False
    has_scheme: bool = False
    network: str = AUTO_NETWORK
    over_http: bool = False

    @classmethod
    def parse(cls, seeds: Sequence[str], *, tls: bool = False) -> "ConnectionString":
        """Parse a list of addresses, or of parts of one connection string.

        ``couchbases://`` means TLS; ``tls`` means it for hosts without a scheme.

        Raises:
            ConfigError: a part is no address, parts contradict one another, or an option is
                unknown.
        """
        if not seeds:
            raise ConfigError("seeds: found none, expected at least one host:port")
        text = ",".join(seeds)
        if "@" in text:  # looked for first: a comma may be part of a password
            _read(text)
        parts = [_read(part) for part in text.split(",")]
        schemes = {part.scheme for part in parts if part.scheme}
        if len(schemes) > 1:
            raise ConfigError("seeds: found couchbase:// and couchbases://, expected one of them")
        options: dict[str, str] = {}
        for part in parts:
            options |= _options(part)
        tls = tls or "couchbases" in schemes
        return cls(
            hosts=tuple((part.host, part.port) for part in parts),
            tls=tls,
            has_scheme=bool(schemes),
            network=options.get(_NETWORK, AUTO_NETWORK),
            over_http=_speaks_http([part.port for part in parts], options, tls=tls),
        )

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Hosts and ports; without a written port the service's own."""
        plain, encrypted = _HTTP_PORTS if self.over_http else _DATA_PORTS
        return tuple(
            (host, port or (encrypted if self.tls else plain)) for host, port in self.hosts
        )

    @property
    def srv_name(self) -> str:
        """The DNS name whose SRV records may list the nodes; empty if there is nothing to ask.

        Only one host name without a port, after a scheme, has it.
        """
        host, port = self.hosts[0]
        if not self.has_scheme or self.over_http or len(self.hosts) > 1 or port or _is_ip(host):
            return ""
        return f"_couchbase{'s' if self.tls else ''}._tcp.{host}"


def parse_seed(text: str, *, tls: bool = False, http: bool = False) -> tuple[str, int]:
    """Return host and port. The default port is the data service's, with ``tls`` the encrypted one.

    With ``http`` it is the port for HTTP.

    Raises:
        ConfigError: the text is no address, or its port is known as the other service's.
    """
    part = _read(text)
    if part.scheme == "couchbases" and not tls:
        raise part.wrong(
            "found couchbases://, which is TLS, expected that to be switched on too "
            "(source.tls = true, or --tls where the command has it)"
        )
    if part.behind:
        raise part.wrong(
            f"found {part.what_is_behind} behind the address, expected nothing: bucket and options "
            "have settings of their own"
        )
    plain, encrypted = _HTTP_PORTS if http else _DATA_PORTS
    if part.port in (_DATA_PORTS if http else _HTTP_PORTS):
        found, expected = "where nodes speak HTTP", "the data service's"
        if http:
            found, expected = expected, "the port of HTTP"
        raise ConfigError(
            f"node address {part.shown!r}: found port {part.port}, {found}, "
            f"expected {expected}: {plain}, or {encrypted} with TLS"
        )
    return part.host, part.port or (encrypted if tls else plain)


def check_address(host: str, port: int) -> None:
    """Raise ValueError for an address that no socket can connect to."""
    if not _is_host(host):
        raise ValueError(f"found host {host!r}, expected a host name or IP")
    if type(port) is not int or not 1 <= port <= 65535:
        raise ValueError(f"found port {port!r}, expected 1 to 65535")


@dataclass(frozen=True, slots=True)
class _WrittenAddress:
    """One address as written; ``behind`` follows it, from ``/`` or ``?`` on.

    ``shown`` is safe for messages: it has no user, and no options, which may hold a password.
    """

    shown: str
    scheme: str = ""
    host: str = ""
    port: int | None = None
    behind: str = ""

    @property
    def what_is_behind(self) -> str:
        """The text after the address, for messages."""
        path = self.behind.partition("?")[0]
        return repr(path) if path else "options"

    def wrong(self, why: object) -> ConfigError:
        return ConfigError(
            f"node address {self.shown!r}: {why}; write host:port, for example {DEFAULT_SEED}"
        )


def _read(text: str) -> _WrittenAddress:
    shown = text.rpartition("@")[2].partition("?")[0]
    try:
        if "@" in text:  # before anything of it is shown
            raise ValueError("found a user in it, expected the user and password apart from it")
        written_scheme, mark, rest = text.strip().partition("://")
        scheme, rest = (written_scheme, rest) if mark else ("", written_scheme)
        if mark and scheme not in ("couchbase", "couchbases"):
            raise ValueError(f"found {scheme}://, expected couchbase://, couchbases:// or nothing")
        end = min((rest.index(sign) for sign in "/?" if sign in rest), default=len(rest))
        behind = rest[end:]
        if mark and behind.partition("?")[0] == "/":
            behind = behind[1:]
        host, written = _split(rest[:end])
        port = None if written is None else _port(written)
        check_address(host, PLAIN_PORT if port is None else port)
    except ValueError as error:
        raise _WrittenAddress(shown).wrong(error) from None
    return _WrittenAddress(shown, scheme, host, port, behind)


def _options(part: _WrittenAddress) -> dict[str, str]:
    """Return the options behind an address."""
    if not part.behind:
        return {}
    if not part.behind.startswith("?"):
        raise part.wrong(
            f"found {part.what_is_behind} behind the address, expected nothing: the bucket has a "
            "setting of its own"
        )
    found: dict[str, str] = {}
    for option in part.behind[1:].split("&"):
        name, _, value = option.partition("=")
        if name not in (_NETWORK, _BOOTSTRAP):
            raise part.wrong(f"found option {name!r}, expected {_NETWORK} or {_BOOTSTRAP}")
        if not value or (name == _BOOTSTRAP and value not in _BOOTSTRAPS):
            expected = (
                " or ".join(_BOOTSTRAPS) if name == _BOOTSTRAP else "auto, default or external"
            )
            raise part.wrong(f"option {name}: found {value!r}, expected {expected}")
        found[name] = value
    return found


def _speaks_http(ports: Sequence[int | None], options: dict[str, str], *, tls: bool) -> bool:
    """Return whether to ask the hosts over HTTP: by option, or because the ports are HTTP's."""
    of_http = [port for port in ports if port in _HTTP_PORTS]
    wrong = HTTP_PORT if tls else HTTPS_PORT
    if wrong in of_http:
        words = ("without TLS", "with TLS") if tls else ("with TLS", "without TLS")
        right = HTTPS_PORT if tls else HTTP_PORT
        raise ConfigError(
            f"seeds: found port {wrong}, where nodes speak HTTP {words[0]}, expected {right}, "
            f"which is HTTP {words[1]}"
        )
    if not of_http:
        if options.get(_BOOTSTRAP) != "http":
            return False
        if of_data := [port for port in ports if port in _DATA_PORTS]:
            manager = HTTPS_PORT if tls else HTTP_PORT
            raise ConfigError(
                f"seeds: found port {of_data[0]}, the data service's, with {_BOOTSTRAP}=http, "
                f"expected none, or the cluster manager's: {manager}"
            )
        return True
    if len(of_http) < len(ports) or options.get(_BOOTSTRAP) == "cccp":
        raise ConfigError(
            f"seeds: found port {of_http[0]}, where nodes speak HTTP, among ports of the data "
            f"service, expected all of one kind; without a port it is {PLAIN_PORT}, or {TLS_PORT} "
            "with TLS"
        )
    return True


def _is_host(text: str) -> bool:
    if not text or any(sign.isspace() or sign in _NEVER_IN_HOSTS for sign in text):
        return False
    try:
        return bool(IPv6Address(text)) if ":" in text else bool(text.encode("idna"))
    except ValueError:  # UnicodeError is one
        return False


def _is_ip(host: str) -> bool:
    if ":" in host:
        return True
    try:
        return bool(IPv4Address(host))
    except ValueError:
        return False


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, closing, rest = text[1:].partition("]")
        if not closing or (rest and not rest.startswith(":")):
            found = f"{rest!r} behind ']'" if closing else "'[' without ']'"
            raise ValueError(f"found {found}, expected an IPv6 host in brackets, as [::1]:11210")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise ValueError(f"found port {text!r}, expected 1 to 65535")
    return int(text)
