"""Asks the nodes of a cluster for persisted seqnos, of active vbuckets and replicas."""

from collections.abc import Mapping

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.connection import NodeConnection
from dcp.client.probe import ask_nodes
from dcp.client.settings import ConnectionSettings
from dcp.protocol.credentials import Credentials


def persisted_seqnos(
    cluster: ClusterMap,
    branches: Mapping[int, int],
    settings: ConnectionSettings,
    credentials: Credentials,
) -> dict[int, dict[NodeAddress, int]]:
    """Return the persisted seqnos by vbucket and node.

    ``branches`` gives the uuid of each vbucket's branch. The result lacks nodes that are out of
    reach, do not have the vbucket, or have another branch. Nodes of an ephemeral bucket, which has
    no disk, report 0 (kv_engine ``ephemeral_vb.h``).

    Raises:
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
    """
    by_node: dict[NodeAddress, dict[int, int]] = {}
    for vbucket, vb_uuid in branches.items():
        owner = cluster.owner(vbucket)
        for node in {*([] if owner is None else [owner]), *cluster.replica_nodes(vbucket)}:
            by_node.setdefault(node, {})[vbucket] = vb_uuid

    def question(connection: NodeConnection) -> dict[int, int]:
        return connection.persisted_seqnos(by_node[connection.address])

    found: dict[int, dict[NodeAddress, int]] = {vbucket: {} for vbucket in branches}
    for node, told in ask_nodes(by_node, settings, credentials, question).items():
        if not isinstance(told, str):
            for vbucket, seqno in told.items():
                found[vbucket][node] = seqno
    return found
