"""Asks the cluster for the bucket's uuid and vbuckets, before the relay has the bucket."""

from dataclasses import dataclass

from dcp.client.probe import ask_seeds
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
    seeds = [str(address) for address in settings.upstream]
    found, _ = ask_seeds(seeds, settings.connection, credentials, named="--upstream")
    return BucketFacts(found.bucket_uuid, found.vbucket_count)
