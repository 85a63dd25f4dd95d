"""Asks the cluster for the bucket's uuid and vbuckets, before the relay has the bucket."""

from dataclasses import dataclass

from dcp.client.cluster_map import ClusterMap
from dcp.client.connection import NodeConnection
from dcp.client.connection_names import unique_name
from dcp.errors import NodeUnavailableError
from dcp.protocol.credentials import Credentials
from dcp.relay.relay_settings import RelaySettings


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """The uuid and vbucket count of the cluster's bucket; an old server tells no uuid."""

    uuid: str
    vbuckets: int


def ask_cluster(settings: RelaySettings, credentials: Credentials) -> BucketFacts:
    """Return the answer of the first node that answers.

    Raises:
        NodeUnavailableError: none does; names each with the reason.
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
        RemoteProtocolError: a node breaks the protocol.
    """
    troubles: list[str] = []
    for address in settings.upstream:
        name = unique_name("dcplake-relay-probe", settings.bucket)
        node = NodeConnection(address, settings.connection, credentials, name, open_dcp=False)
        try:
            node.open()
            config = node.cluster_config()
        except NodeUnavailableError as error:
            troubles.append(str(error))
            continue
        finally:
            node.close()
        found = ClusterMap.parse(config, address, tls=settings.tls is not None)
        return BucketFacts(found.bucket_uuid, found.vbucket_count)
    raise NodeUnavailableError(f"relay upstream: no node answers: {'; '.join(troubles)}")
