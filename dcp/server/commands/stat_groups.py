"""The statistics groups that STAT answers, under kv_engine's names."""

from collections.abc import Iterator
from typing import Final

from dcp.server.bucket.assembly import Bucket
from dcp.server.commands import bucket_statistics as of_bucket
from dcp.server.commands import dcp_statistics as of_dcp
from dcp.server.commands import vbucket_statistics as of_vbuckets
from dcp.server.commands.stat_request import (
    Group,
    Statistic,
    StatisticsRequest,
    without_argument,
)
from dcp.server.model.refused_error import RefusedError
from dcp.wire.vocabulary import Status

GROUPS: Final[dict[str, Group]] = {
    "": without_argument(of_bucket.general),
    "memory": without_argument(of_bucket.memory),
    "uuid": without_argument(of_bucket.uuid),
    "vbucket": without_argument(of_vbuckets.states),
    "vbucket-seqno": of_vbuckets.seqnos,
    "vbucket-details": of_vbuckets.details,
    "failovers": of_vbuckets.failovers,
    "checkpoint": of_vbuckets.checkpoints,
    "dcp": without_argument(of_dcp.connections),
    "dcpagg": of_dcp.aggregated,
    "dcp-vbtakeover": of_dcp.takeover,
    "collections": of_bucket.collections,
    "collections-byid": of_bucket.collections_by_id,
    "collections-details": of_bucket.collection_details,
    "scopes": of_bucket.scopes,
    "scopes-byid": of_bucket.scopes_by_id,
}


def statistics_of(bucket: Bucket, node: int, key: bytes, value: bytes) -> Iterator[Statistic]:
    """Return the statistics of a group; they are generated as they are read.

    ``key`` is the group's name, and an argument after a space.

    Raises:
        RefusedError: KEY_ENOENT for an unknown group (kv_engine
            ``engines/ep/src/ep_engine.cc``, getStats), or the group refuses its argument.
    """
    name, _, argument = key.decode("utf-8", "replace").partition(" ")
    group = GROUPS.get(name)
    if group is None:
        raise RefusedError(Status.KEY_ENOENT, f"statistics: found unknown group {name!r}")
    return group(StatisticsRequest(bucket, node, argument, value))
