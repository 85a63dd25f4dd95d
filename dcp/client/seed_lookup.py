"""Finds the first data nodes: from a connection string, DNS SRV records, or over HTTP.

A DNS lookup without result is no failure: then the host itself is a node (SDK-RFC 11). Over HTTP
(``couchbase://host:8091``) a node's cluster manager sends the cluster map, and with it the data
nodes. That sends the password unencrypted, as PLAIN does.
"""

import logging
import ssl
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from dcp.client.addresses import NodeAddress
from dcp.client.certificates import certificate_fault
from dcp.client.cluster_map import ClusterMap
from dcp.client.settings import ConnectionSettings
from dcp.errors import (
    AuthenticationError,
    BucketError,
    ConfigError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol.credentials import PLAIN, Credentials
from dcp.protocol.refusals import (
    HTTP_CURE,
    HTTP_PORT_CURE,
    bucket_cure,
    login_cure,
    raise_refusal,
    tls_cure,
)
from dcp.seeds import ConnectionString
from dcp.tls_settings import TlsSettings
from dcp.wire.vocabulary import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from dns.resolver import Resolver

_LOGGER = logging.getLogger(__name__)

_MOST_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class FoundSeeds:
    """Addresses of the first data nodes, without repetition.

    ``lookup`` says which service was asked, and its answer; empty if the addresses are the hosts as
    written.
    """

    nodes: tuple[NodeAddress, ...]
    lookup: str = ""


def find_seeds(
    seeds: Sequence[str],
    settings: ConnectionSettings,
    credentials: Credentials,
    resolver: "Resolver | None" = None,
) -> FoundSeeds:
    """Return the first data nodes.

    Args:
        seeds: addresses, or the parts of one connection string.
        settings: whether to encrypt, and how long an attempt may take.
        credentials: user and password for HTTP.
        resolver: asks for SRV records; None: the system's.

    Raises:
        ConfigError: the seeds cannot be parsed; or the password would go over plain HTTP.
        NodeUnavailableError: no node answers over HTTP.
        AuthenticationError: a node refuses user or password there, and no other one accepts them.
        BucketError: a node has no such bucket there, or denies access to it, and so does every
            other.
        RemoteProtocolError: the answers are no cluster map; the message is about the first one.
    """
    tls = settings.tls is not None
    wanted = ConnectionString.parse(seeds, tls=tls)
    if wanted.tls and not tls:
        raise ConfigError("seeds: found couchbases://, expected settings that encrypt connections")
    written = tuple(dict.fromkeys(NodeAddress(*address) for address in wanted.addresses))
    if wanted.over_http:
        return _nodes_over_http(written, settings, credentials)
    if wanted.srv_name:
        return _srv_targets(wanted.srv_name, written, settings, resolver)
    return FoundSeeds(written)


def _srv_targets(
    name: str,
    written: tuple[NodeAddress, ...],
    settings: ConnectionSettings,
    resolver: "Resolver | None",
) -> FoundSeeds:
    """Return the targets of the records, by priority and weight; without records the host as
    written.
    """
    from dns.exception import DNSException
    from dns.rdtypes.IN.SRV import SRV
    from dns.resolver import Resolver

    try:
        asked = resolver or Resolver()
        answer = asked.resolve(name, "SRV", search=True, lifetime=settings.connect_timeout_seconds)
        records = answer.rrset.processing_order() if answer.rrset is not None else []
        named = [
            NodeAddress(str(each.target).rstrip("."), each.port)
            for each in records
            if isinstance(each, SRV)
        ]
        if not named:
            raise ValueError("the answer has none")
    except (DNSException, ValueError) as error:  # ValueError: no host that one can connect to
        _LOGGER.debug("found no SRV records %s: %s", name, error)
        return FoundSeeds(
            written, f"SRV records {name}: found none ({error}), so {written[0]} itself is the node"
        )
    return FoundSeeds(tuple(dict.fromkeys(named)), f"SRV records {name}: {_listed(named)}")


def _nodes_over_http(
    hosts: Sequence[NodeAddress], settings: ConnectionSettings, credentials: Credentials
) -> FoundSeeds:
    """Return the data nodes in the map of the first host that answers."""
    if settings.tls is None and PLAIN not in credentials.mechanisms:
        raise ConfigError(
            f"seeds: found port {hosts[0].port}, where nodes speak HTTP, expected encryption "
            "(couchbases:// and port 18091), the data service's port, or source.allow_plain = true;"
            " HTTP sends the password as it is"
        )
    failures: list[SourceError | RemoteProtocolError] = []
    for host in hosts:
        try:
            nodes, url = _ask(host, settings, credentials)
            return FoundSeeds(nodes, f"{url}: {_listed(nodes)}")
        except (SourceError, RemoteProtocolError) as error:
            failures.append(error)
    raise_refusal(failures)
    if isinstance(failures[0], RemoteProtocolError):
        raise failures[0]
    told = "; ".join(map(str, failures))
    raise NodeUnavailableError(f"none of {len(hosts)} seeds answers: {told}")


def _listed(nodes: Sequence[NodeAddress]) -> str:
    return ", ".join(map(str, nodes))


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A node's answer to one question over HTTP."""

    url: str
    status: int
    body: bytes

    def __str__(self) -> str:
        said = self.body[:_MOST_TEXT].decode("utf-8", "backslashreplace")
        return f"{self.url}: found status {self.status} ({said!r})"


def ask_over_http(
    host: NodeAddress,
    path: str,
    tls: TlsSettings | None,
    timeout_seconds: float,
    credentials: Credentials,
) -> HttpAnswer:
    """Return a node's answer. The password is sent unencrypted without ``tls``.

    Raises:
        NodeUnavailableError: the node cannot be reached, or does not speak HTTP.
        AuthenticationError: the node refuses user or password.
        SecretError: a file of ``tls`` cannot be used.
    """
    url = f"{'http' if tls is None else 'https'}://{host}{path}"
    if tls is None:
        connection = HTTPConnection(host.host, host.port, timeout=timeout_seconds)
    else:
        connection = HTTPSConnection(
            host.host, host.port, timeout=timeout_seconds, context=tls.client_context()
        )
    try:
        connection.request("GET", path, headers=_authorization(credentials))
        with connection.getresponse() as response:
            answer = HttpAnswer(url, response.status, response.read(MAX_FRAME_BYTES))
    except (OSError, HTTPException) as error:
        cure = HTTP_CURE
        if tls is not None and isinstance(error, ssl.SSLError):
            fault = certificate_fault(error, host, tls, timeout_seconds)
            cure = fault or tls_cure(error, HTTP_PORT_CURE)
        told = str(error) or type(error).__name__
        raise NodeUnavailableError(f"{url}: {told}, {cure}") from error
    finally:
        connection.close()
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise AuthenticationError(f"{answer}, {login_cure(credentials)}")
    return answer


def _ask(
    host: NodeAddress, settings: ConnectionSettings, credentials: Credentials
) -> tuple[tuple[NodeAddress, ...], str]:
    """Return the data nodes in a host's map, and the map's URL."""
    path = f"/pools/default/b/{quote(settings.bucket, safe='')}"
    seconds = settings.connect_timeout_seconds
    answer = ask_over_http(host, path, settings.tls, seconds, credentials)
    if answer.status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        raise BucketError(f"{answer}, {bucket_cure(settings.bucket, credentials)}")
    if answer.status != HTTPStatus.OK:
        raise NodeUnavailableError(f"{answer}, expected status 200 of a cluster manager")
    tls = settings.tls is not None
    found = ClusterMap.parse(answer.body, host, tls=tls, network=settings.network)
    if not found.addresses:
        raise NodeUnavailableError(
            f"cluster map from {host}: found no data node {'with' if tls else 'without'} TLS in "
            f"network {found.network!r}, expected one or more"
        )
    return found.addresses, answer.url


def _authorization(credentials: Credentials) -> dict[str, str]:
    if credentials.by_certificate:
        return {}
    account = f"{credentials.username}:{credentials.password.reveal()}"
    return {"Authorization": f"Basic {b64encode(account.encode()).decode()}"}
