"""The cluster map as a value: which node serves which vbucket, at which revision.

It is parsed from the terse bucket configuration of GET_CLUSTER_CONFIG, NOT_MY_VBUCKET answers and
pushes. The first ``len(nodes)`` entries of ``nodesExt``, in the order of the vbucket map, give the
addresses. Servers without it send ``vBucketServerMap.serverList``, which has no TLS ports. A
missing host name, and the placeholder ``$HOST``, mean the host that sent the map (kv_engine
``docs/BinaryProtocol.md``, gocbcore ``routeconfig.go``).

Nodes may have other addresses for clients elsewhere: ``alternateAddresses``, by network (gocbcore
``config.go``). Unless the user names a network, it is the one that has the sender's host and port;
else the alternate one with its host; else the default one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcp.client.addresses import NodeAddress
from dcp.errors import ConfigError, RemoteProtocolError
from dcp.seeds import AUTO_NETWORK, DEFAULT_NETWORK
from dcp.wire.json_tree import json_tree


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """One revision of a bucket's map.

    ``nodes`` are in the map's order; None for a node without a data service of the wanted kind
    (plain or TLS). ``active`` holds by vbucket an index into ``nodes``, or -1 if no node serves the
    vbucket; ``replicas`` holds the indices of its replicas, in the map's order. ``network`` is the
    network of the addresses. ``cluster_uuid`` is empty for servers before 7.6. An ephemeral bucket
    is on no disk.
    """

    bucket: str
    bucket_uuid: str
    epoch: int
    rev: int
    nodes: tuple[NodeAddress | None, ...]
    active: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...] = ()
    network: str = DEFAULT_NETWORK
    cluster_uuid: str = ""
    is_ephemeral: bool = False

    @property
    def vbucket_count(self) -> int:
        """Fixed for the life of the bucket."""
        return len(self.active)

    @property
    def addresses(self) -> tuple[NodeAddress, ...]:
        """The reachable data nodes."""
        return tuple(node for node in self.nodes if node is not None)

    @property
    def replica_count(self) -> int:
        """The configured number of replicas of each vbucket."""
        return max(map(len, self.replicas), default=0)

    def owner(self, vbucket: int) -> NodeAddress | None:
        """Return the node with the active ``vbucket``; None if no node has it.

        Raises:
            ValueError: the bucket has no such vbucket.
        """
        if not 0 <= vbucket < len(self.active):
            raise ValueError(
                f"cluster map of {self.bucket}: found vbucket {vbucket}, "
                f"expected 0 to {len(self.active) - 1}"
            )
        index = self.active[vbucket]
        return None if index < 0 else self.nodes[index]

    def why_without_owner(self, vbucket: int) -> str:
        """Return why a vbucket of the bucket has no ``owner``."""
        if self.active[vbucket] < 0:
            return "the cluster map names no active node for it"
        return (
            "the cluster map has no port of its active node's data service in network "
            f"{self.network!r}, of the kind that is asked for (plain or TLS), expected one: expose "
            "the node there, or choose another network (source.seeds, ?network=)"
        )

    def replica_nodes(self, vbucket: int) -> tuple[NodeAddress, ...]:
        """Return the nodes with a replica of ``vbucket``, in the map's order."""
        indices = self.replicas[vbucket] if vbucket < len(self.replicas) else ()
        found = (self.nodes[index] for index in indices if index >= 0)
        return tuple(node for node in found if node is not None)

    def supersedes(self, other: "ClusterMap | None") -> bool:
        """Return whether this map replaces ``other``: a higher (epoch, rev), or no version.

        Maps of revision 0 are unversioned and always apply (gocbcore).
        """
        if other is None or self.rev == 0:
            return True
        return (self.epoch, self.rev) > (other.epoch, other.rev)

    @classmethod
    def parse(
        cls,
        config: bytes,
        sender: NodeAddress,
        *,
        tls: bool = False,
        network: str = AUTO_NETWORK,
    ) -> "ClusterMap":
        """Parse the configuration JSON that ``sender`` sent.

        Raises:
            RemoteProtocolError: no JSON, or a field is missing or of the wrong shape; the message
                names the field.
            ConfigError: no node has an address in ``network``.
        """
        fields = _Fields(_document(config, sender), f"cluster map from {sender}")
        locator = fields.optional("nodeLocator", str, "vbucket")
        if locator != "vbucket":
            raise fields.wrong("nodeLocator", locator, "'vbucket' (a Couchbase bucket)")
        server_map = fields.inner("vBucketServerMap", fields.required("vBucketServerMap", dict))
        extended = [
            _places(fields, f"nodesExt[{index}]", entry, sender)
            for index, entry in enumerate(fields.optional("nodesExt", list, []))
        ]
        network = _network(network, fields, extended, sender)
        if extended:
            count = len(fields.optional("nodes", list, extended)) or len(extended)
            nodes = tuple(_address(each, network, tls=tls) for each in extended[:count])
        else:
            nodes = _listed_nodes(fields, server_map, sender, tls=tls)
        rows = _vbucket_rows(server_map, len(nodes))
        return cls(
            bucket=fields.required("name", str),
            bucket_uuid=fields.optional("uuid", str, ""),
            epoch=fields.optional("revEpoch", int, 0),
            rev=fields.required("rev", int),
            nodes=nodes,
            active=tuple(row[0] for row in rows),
            replicas=tuple(row[1:] for row in rows),
            network=network,
            cluster_uuid=fields.optional("clusterUUID", str, ""),
            is_ephemeral=_is_ephemeral(fields),
        )


@dataclass(frozen=True, slots=True)
class _Fields:
    """A JSON object with typed access to its fields."""

    values: dict[str, Any]
    where: str
    prefix: str = ""

    def required(self, name: str, kind: type) -> Any:
        if name not in self.values:
            found = ", ".join(sorted(self.values)) or "an empty object"
            raise RemoteProtocolError(
                f"{self.where}: field '{self.prefix}{name}' is missing (found {found})"
            )
        return self.optional(name, kind, None)

    def optional(self, name: str, kind: type, default: Any) -> Any:
        value = self.values.get(name, default)
        if name in self.values and (not isinstance(value, kind) or isinstance(value, bool)):
            raise self.wrong(name, value, f"a JSON {_JSON_NAMES[kind]}")
        return value

    def inner(self, name: str, value: object) -> "_Fields":
        """Return the object in field ``name``."""
        if not isinstance(value, dict):
            raise self.wrong(name, value, "a JSON object")
        return _Fields(value, self.where, f"{name}.")

    def wrong(self, name: str, found: object, expected: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{self.where}: field '{self.prefix}{name}': found {str(found)[:100]!r}, "
            f"expected {expected}"
        )


_JSON_NAMES = {str: "string", int: "integer", list: "array", dict: "object"}


def _document(config: bytes, sender: NodeAddress) -> dict[str, Any]:
    try:
        document = json_tree(config)
    except ValueError as error:
        raise RemoteProtocolError(
            f"cluster map from {sender}: found {len(config)} bytes that are no JSON ({error})"
        ) from None
    if not isinstance(document, dict):
        raise RemoteProtocolError(
            f"cluster map from {sender}: found a JSON {type(document).__name__}, expected an object"
        )
    return document


def _is_ephemeral(fields: _Fields) -> bool:
    """Return whether the bucket is on no disk.

    Servers send the type from 7.1 on. On older ones exactly the buckets with a disk have views
    (core-io ``CouchbaseBucketTopologyParser.java``, ns_server ``bucket_info_cache.erl``).
    """
    bucket_type = fields.optional("bucketType", str, "")
    if bucket_type or "bucketCapabilities" not in fields.values:
        return bool(bucket_type == "ephemeral")
    return "couchapi" not in fields.optional("bucketCapabilities", list, [])


_Places = Mapping[str, tuple[str, _Fields]]
"""A node's host and the ports of its services, by network."""


def _places(fields: _Fields, name: str, entry: object, sender: NodeAddress) -> _Places:
    """Return the places in one entry of ``nodesExt``."""
    node = fields.inner(name, entry)
    services = fields.inner(f"{name}.services", node.required("services", dict))
    places = {}
    for network, value in node.optional("alternateAddresses", dict, {}).items():
        where = f"{name}.alternateAddresses.{network}"
        other = fields.inner(where, value)
        ports = other.optional("ports", dict, None)  # without them they are the default's
        places[network] = (
            _host(other.optional("hostname", str, ""), sender),
            services if ports is None else fields.inner(f"{where}.ports", ports),
        )
    places[DEFAULT_NETWORK] = _host(node.optional("hostname", str, ""), sender), services
    return places


def _address(places: _Places, network: str, *, tls: bool) -> NodeAddress | None:
    """Return the data service's address; None if the node offers none in that network."""
    host, ports = places.get(network, ("", None))
    name = "kvSSL" if tls else "kv"
    port = None if ports is None else ports.optional(name, int, None)
    if ports is None or port is None:
        return None
    try:
        return NodeAddress(host, port)
    except ValueError as error:
        raise ports.wrong(name, port, f"the port of a host ({error})") from None


def _network(wanted: str, fields: _Fields, nodes: Sequence[_Places], sender: NodeAddress) -> str:
    """Return the network of the addresses to use: the wanted one, or that of ``sender``."""
    places = [(name, *place) for each in nodes for name, place in each.items()]
    places.sort(key=lambda place: place[0] != DEFAULT_NETWORK)  # the default one comes first
    if wanted != AUTO_NETWORK:
        known = dict.fromkeys([DEFAULT_NETWORK, *(name for name, *_ in places)])
        if wanted in known:
            return wanted
        raise ConfigError(
            f"{fields.where}: found addresses of network {', '.join(known)}, expected "
            f"{wanted!r}, which the connection string asks for; ask for one that is there "
            "(source.seeds, ?network=), or give the nodes alternate addresses"
        )
    sender_host = sender.host.lower()
    at_host = [(name, ports) for name, host, ports in places if host.lower() == sender_host]
    exact = [name for name, ports in at_host if sender.port in ports.values.values()]
    # A default host that is not written is everywhere; what is behind a balancer has other ports.
    alternates = [name for name, _ in at_host if name != DEFAULT_NETWORK]
    return next(iter(exact + alternates), DEFAULT_NETWORK)


def _listed_nodes(
    fields: _Fields, server_map: _Fields, sender: NodeAddress, *, tls: bool
) -> tuple[NodeAddress, ...]:
    if tls:
        raise RemoteProtocolError(
            f"{fields.where}: field 'nodesExt' is missing, and only it names the TLS ports"
        )
    return tuple(
        _listed_node(server_map, index, entry, sender)
        for index, entry in enumerate(server_map.required("serverList", list))
    )


def _listed_node(
    server_map: _Fields, index: int, entry: object, sender: NodeAddress
) -> NodeAddress:
    name = f"serverList[{index}]"
    if not isinstance(entry, str):
        raise server_map.wrong(name, entry, "a string host:port")
    text = entry.replace("$HOST", f"[{sender.host}]" if ":" in sender.host else sender.host)
    try:
        return NodeAddress.parse(text)
    except ConfigError as error:
        raise server_map.wrong(name, entry, f"host:port ({error})") from None


def _host(name: str, sender: NodeAddress) -> str:
    return name.replace("$HOST", sender.host).strip("[]") if name else sender.host


def _vbucket_rows(server_map: _Fields, node_count: int) -> list[tuple[int, ...]]:
    """Return for each vbucket the indices of its nodes: the active one, then the replicas."""
    rows = server_map.required("vBucketMap", list)
    if not rows:
        raise server_map.wrong("vBucketMap", rows, "at least one vbucket")
    for vbucket, row in enumerate(rows):
        indices = row if isinstance(row, list) else []
        known = (type(index) is int and -1 <= index < node_count for index in indices)
        if not indices or not all(known):
            raise server_map.wrong(
                f"vBucketMap[{vbucket}]", row, f"a list of numbers from -1 to {node_count - 1}"
            )
    return [tuple(row) for row in rows]
