"""Looks at a cluster before there is a configuration: its buckets, and what one of them holds."""

from dataclasses import dataclass
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.kv.kv_connection import signed_in, stat_number
from dcp.client.probe import ProbedCluster, first_answer, probe_cluster
from dcp.client.seed_lookup import find_seeds
from dcp.errors import RemoteProtocolError, SourceError
from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import SEEDS, source_access
from dcp.lake.tables.collections import replicas_of
from dcp.protocol.credentials import Credentials

_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class BucketProbe:
    """The contents of a bucket; ``documents`` is None where a node does not tell this user."""

    cluster: ProbedCluster
    documents: int | None
    offers_tls: bool

    def __str__(self) -> str:
        found = self.cluster.map
        documents = "not told" if self.documents is None else f"{self.documents:,}"
        return (
            f"bucket {found.bucket!r}: nodes: {len(found.addresses)}, vbuckets: "
            f"{found.vbucket_count}, collections: {len(replicas_of(self.cluster.manifest))}, "
            f"documents: {documents}"
        )


def list_buckets(settings: Settings, credentials: Credentials) -> list[str]:
    """Return the buckets that the user has access to; none where no node tells.

    Raises:
        NodeUnavailableError: no seed answers; the message says why, seed by seed.
        AuthenticationError: user or password refused.

    """
    access = source_access(settings)
    connection = access.consumer.connection

    def ask(seed: NodeAddress) -> list[str]:
        with signed_in(
            str(seed), connection, credentials, _TIMEOUT_SECONDS, selects_bucket=False
        ) as node:
            return node.buckets()

    return first_answer(find_seeds(access.source.seeds, connection, credentials), ask, SEEDS)


def probe_bucket(settings: Settings, credentials: Credentials) -> BucketProbe:
    """Ask all nodes what they hold of the bucket.

    Raises:
        NodeUnavailableError: no seed answers; the message says why, seed by seed.
        BucketError: no such bucket, or no access to it.
        AuthenticationError: user or password refused.

    """
    access = source_access(settings)
    connection = access.consumer.connection
    cluster = probe_cluster(access.source.seeds, connection, credentials, named=SEEDS)
    documents: int | None = 0
    offers_tls = False
    for address in cluster.map.addresses:
        if address in cluster.unreachable:
            documents = None
            continue
        try:
            with signed_in(str(address), connection, credentials, _TIMEOUT_SECONDS) as node:
                offers_tls = offers_tls or _offers_tls(node.cluster_config(), address)
                items = stat_number(node.statistics(""), "curr_items")
        except SourceError:
            items = None
        documents = None if documents is None or items is None else documents + items
    return BucketProbe(cluster, documents, offers_tls)


def _offers_tls(config: bytes, address: NodeAddress) -> bool:
    try:
        return bool(ClusterMap.parse(config, address, tls=True).addresses)
    except RemoteProtocolError:  # an old server's map, which names no ports of TLS
        return False
