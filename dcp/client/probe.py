"""Asks the cluster for its map, high seqnos, failover logs and persisted seqnos.

The connections are ordinary ones (no DCP_OPEN), one per node, all at the same time. The connection
settings bound each of them, so the probe takes no longer than the timeouts of one slow node.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.connection import NodeConnection
from dcp.client.connection_names import unique_name
from dcp.client.reader import SetUpStep
from dcp.client.seed_lookup import FoundSeeds, find_seeds
from dcp.client.settings import ConnectionSettings
from dcp.errors import (
    DcplakeError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol.credentials import Credentials
from dcp.protocol.refusals import raise_refusal
from dcp.types import FailoverLog
from dcp.wire.vocabulary import HelloFeature, VbucketState

_LOGGER = logging.getLogger(__name__)

_NAME_PREFIX: Final = "dcplake-probe"
_PARALLEL: Final = 32
T = TypeVar("T")
SeedAnswer = tuple[ClusterMap, bytes | None]
"""The cluster map and the collections manifest; None if the bucket has no manifest."""


@dataclass(frozen=True, slots=True)
class ProbedCluster:
    """The state of a cluster at one moment.

    ``high_seqnos`` has every active vbucket of a reachable node; ``unreachable`` gives, by node of
    the map, the reason why its vbuckets are missing. ``manifest`` is the JSON of the collections
    manifest, if the bucket has one.

    ``failover_logs`` gives the branch of each vbucket: after a failover the new branch may reach
    just the seqno of the old one, with other data. A vbucket is missing there if its node does not
    send its failover log, or one that contradicts itself.
    """

    map: ClusterMap
    high_seqnos: Mapping[int, int]
    unreachable: Mapping[NodeAddress, str]
    manifest: bytes | None = None
    failover_logs: Mapping[int, FailoverLog] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VbucketHolder:
    """A node with a replica of a vbucket, and the state of that replica.

    ``failover_log`` is None if the node sends no valid one.
    """

    node: NodeAddress
    high_seqno: int
    failover_log: FailoverLog | None


def probe_cluster(
    seeds: Sequence[str],
    settings: ConnectionSettings,
    credentials: Credentials,
    *,
    named: str = "the seeds",
) -> ProbedCluster:
    """Ask the first seed that answers for the map, and all its nodes for their vbuckets.

    Takes and raises what ``ask_seeds`` does.
    """
    found, manifest = ask_seeds(seeds, settings, credentials, named=named)
    return probe_nodes(found, manifest, settings, credentials)


def ask_seeds(
    seeds: Sequence[str],
    settings: ConnectionSettings,
    credentials: Credentials,
    *,
    named: str = "the seeds",
) -> SeedAnswer:
    """Return the answer of the first seed that answers.

    Args:
        seeds: addresses, or the parts of one connection string (`find_seeds`).
        settings: how to connect.
        credentials: user and password.
        named: the user's name for the seeds, as ``source.seeds``.

    Raises:
        ConfigError: the seeds cannot be parsed, or the cluster lacks the network that they name.
        NodeUnavailableError: no seed answers; the message gives the reason for each.
        AuthenticationError: a seed refuses user or password, and no other one accepts them.
        BucketError: a seed has no such bucket, or denies access to it, and so does every other one.
        RemoteProtocolError: every seed breaks the protocol; the message is about the first one.
    """
    found = find_seeds(seeds, settings, credentials)
    return first_answer(found, lambda seed: ask_seed(seed, settings, credentials), named)


def first_answer(seeds: FoundSeeds, ask: Callable[[NodeAddress], T], named: str) -> T:
    """Ask one seed after the other, and return the first answer; raises as ``ask_seeds``.

    ``named`` is the setting or option with the seeds; empty for nodes that no user wrote.
    """
    failures: list[SourceError | RemoteProtocolError] = []
    for seed in seeds.nodes:
        try:
            return ask(seed)
        except (SourceError, RemoteProtocolError) as error:
            failures.append(error)
    raise_refusal(failures)
    if all(isinstance(error, RemoteProtocolError) for error in failures):
        raise failures[0]
    told = "; ".join([*map(str, failures), *([seeds.lookup] if seeds.lookup else [])])
    if not named:
        raise NodeUnavailableError(told)
    raise NodeUnavailableError(
        f"none of {len(seeds.nodes)} seeds answers: {told}; expected a data node of the cluster "
        f"there: check {named}"
    )


def probe_nodes(
    found: ClusterMap,
    manifest: bytes | None,
    settings: ConnectionSettings,
    credentials: Credentials,
) -> ProbedCluster:
    """Ask all nodes of a map for their vbuckets; raises as ``ask_nodes``."""
    high_seqnos: dict[int, int] = {}
    failover_logs: dict[int, FailoverLog] = {}
    unreachable: dict[NodeAddress, str] = {}
    answers = _ask_for_states(found.addresses, settings, credentials, VbucketState.ACTIVE)
    for address, answer in answers.items():
        if isinstance(answer, str):
            unreachable[address] = answer
        else:
            high_seqnos.update(answer[0])
            failover_logs.update(answer[1])
    return ProbedCluster(found, high_seqnos, unreachable, manifest, failover_logs)


def probe_replicas(
    cluster: ProbedCluster, settings: ConnectionSettings, credentials: Credentials
) -> dict[int, list[VbucketHolder]]:
    """Return the nodes with replicas of each vbucket, in map order.

    Nodes that do not answer, or were not reachable before, are left out. Raises as ``ask_nodes``.
    """
    nodes = [node for node in cluster.map.addresses if node not in cluster.unreachable]
    answers = _ask_for_states(nodes, settings, credentials, VbucketState.REPLICA)
    replicas: dict[int, list[VbucketHolder]] = {}
    for vbucket in range(cluster.map.vbucket_count):
        for node in cluster.map.replica_nodes(vbucket):
            answer = answers.get(node, "")
            if not isinstance(answer, str) and vbucket in answer[0]:
                replica = VbucketHolder(node, answer[0][vbucket], answer[1].get(vbucket))
                replicas.setdefault(vbucket, []).append(replica)
    return replicas


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


_Told = tuple[dict[int, int], dict[int, FailoverLog]]
"""High seqnos and failover logs of one node."""


def _ask_for_states(
    nodes: Sequence[NodeAddress],
    settings: ConnectionSettings,
    credentials: Credentials,
    state: VbucketState,
) -> dict[NodeAddress, _Told | str]:
    """Return the state of each node's vbuckets in ``state``, or why the node does not answer."""

    def question(connection: NodeConnection) -> _Told:
        seqnos = connection.all_vb_seqnos(state)
        return seqnos, _failover_logs_of(connection, seqnos)

    return ask_nodes(nodes, settings, credentials, question)


def ask_nodes(
    nodes: Collection[NodeAddress],
    settings: ConnectionSettings,
    credentials: Credentials,
    question: Callable[[NodeConnection], T],
) -> dict[NodeAddress, T | str]:
    """Ask all nodes at the same time; return each one's answer, or why it gives none.

    While another node answers, a refusal counts as no answer.

    Raises:
        AuthenticationError: a node refuses user or password, and no node answers.
        BucketError: a node has no such bucket, or denies access to it, and no node answers.
    """

    def ask(address: NodeAddress) -> T | SourceError | RemoteProtocolError:
        connection = _asking(address, settings, credentials)
        try:
            connection.open()
            return question(connection)
        except (SourceError, RemoteProtocolError) as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(max(1, min(_PARALLEL, len(nodes))), "dcp-probe") as pool:
        told = dict(zip(nodes, pool.map(ask, nodes), strict=True))
    failures = [each for each in told.values() if isinstance(each, DcplakeError)]
    if len(failures) == len(told):
        raise_refusal(failures)
    return {
        node: str(each) if isinstance(each, DcplakeError) else each for node, each in told.items()
    }


def _failover_logs_of(
    connection: NodeConnection, vbuckets: Collection[int]
) -> dict[int, FailoverLog]:
    """Return the node's failover logs; a refusal is no error."""
    try:
        return connection.failover_logs(vbuckets)
    except (SourceError, RemoteProtocolError) as error:
        _LOGGER.warning("found no failover logs: %s", error)
        return {}


def ask_seed(
    seed: NodeAddress,
    settings: ConnectionSettings,
    credentials: Credentials,
    on_step: Callable[[SetUpStep], None] | None = None,
) -> SeedAnswer:
    """Return the cluster map and the collections manifest of the bucket.

    Raises:
        ConfigError: no node has an address in the network of the settings.
        SourceError: the seed cannot be reached, or refuses; as ``NodeConnection.open``.
        RemoteProtocolError: the seed breaks the protocol.
    """
    connection = _asking(seed, settings, credentials)
    try:
        ready = connection.open(on_step)
        config = ready.cluster_config or connection.cluster_config()
        has_collections = HelloFeature.COLLECTIONS in ready.features
        manifest = connection.collections_manifest() if has_collections else None
        tls, network = settings.tls is not None, settings.network
        return ClusterMap.parse(config, seed, tls=tls, network=network), manifest
    finally:
        connection.close()


def _asking(
    node: NodeAddress, settings: ConnectionSettings, credentials: Credentials
) -> NodeConnection:
    name = unique_name(_NAME_PREFIX, settings.bucket)
    return NodeConnection(node, settings, credentials, name, open_dcp=False)
