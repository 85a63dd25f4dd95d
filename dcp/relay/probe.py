"""What the cluster says of the bucket before the relay has one: its uuid and its vbuckets."""

import secrets
from dataclasses import dataclass
from typing import Final

from dcp.client.cluster_map import ClusterMap
from dcp.client.connection import NodeConnection
from dcp.errors import NodeUnavailableError
from dcp.protocol.credentials import Credentials
from dcp.relay.settings import RelaySettings

_NAME_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """What a relay's bucket must have in common with the cluster's; an old server tells no uuid."""

    uuid: str
    vbuckets: int


def ask_cluster(settings: RelaySettings, credentials: Credentials) -> BucketFacts:
    """Return what the first node says that answers.

    Raises:
        NodeUnavailableError: none does; names each with the reason.
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
        RemoteProtocolError: a node breaks the protocol.
    """
    troubles: list[str] = []
    for address in settings.upstream:
        name = f"dcplake-relay-probe:{secrets.token_hex(_NAME_BYTES)}"
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
