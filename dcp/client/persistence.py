"""Asks the nodes of a cluster how far vbuckets are on their disks, active copies and replicas."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.connection import NodeConnection
from dcp.client.connection_names import unique_name
from dcp.client.settings import ConnectionSettings
from dcp.errors import AuthenticationError, BucketError, RemoteProtocolError, SourceError
from dcp.protocol.credentials import Credentials

_NAME_PREFIX: Final = "dcplake-persistence"
_PARALLEL: Final = 32


def persisted_seqnos(
    cluster: ClusterMap,
    branches: Mapping[int, int],
    settings: ConnectionSettings,
    credentials: Credentials,
) -> dict[int, list[int]]:
    """Return how far vbuckets are on the disks of their nodes, one seqno for each node that tells.

    ``branches`` has the uuid of each vbucket's branch. Nodes that are out of reach, do not have the
    vbucket or are on another branch tell nothing. Those of an ephemeral bucket, which has no disk,
    tell 0 (kv_engine ``ephemeral_vb.h``).

    Raises:
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.

    """
    by_node: dict[NodeAddress, dict[int, int]] = {}
    for vbucket, vb_uuid in branches.items():
        owner = cluster.owner(vbucket)
        holders = {*([] if owner is None else [owner]), *cluster.replica_nodes(vbucket)}
        for node in holders:
            by_node.setdefault(node, {})[vbucket] = vb_uuid

    def ask(address: NodeAddress) -> dict[int, int]:
        connection = NodeConnection(
            address,
            settings,
            credentials,
            unique_name(_NAME_PREFIX, settings.bucket),
            open_dcp=False,
        )
        try:
            connection.open()
            return connection.persisted_seqnos(by_node[address])
        except (AuthenticationError, BucketError):
            raise
        except (SourceError, RemoteProtocolError):
            return {}
        finally:
            connection.close()

    found: dict[int, list[int]] = {vbucket: [] for vbucket in branches}
    with ThreadPoolExecutor(max(1, min(_PARALLEL, len(by_node))), "dcp-persistence") as pool:
        for told in pool.map(ask, by_node):
            for vbucket, seqno in told.items():
                found[vbucket].append(seqno)
    return found
