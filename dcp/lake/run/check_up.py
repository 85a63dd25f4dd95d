"""Checks the way from this machine to the stream of a bucket, step by step (``dcplake doctor``).

The connections are those of a run: the first ones ask a seed and all nodes, the last one opens DCP
and streams a vbucket. So a run gets through every step that succeeds here. The first failing step
ends the check, with the error that ends a run. The check writes only a small file to test an object
store (`dcp.lake.run.store_check`). It starts Spark only if nothing else can reach that store.
"""

import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.connection_names import unique_name
from dcp.client.probe import ProbedCluster, SeedAnswer, probe_nodes
from dcp.client.reactions import REFUSALS, Reaction, end_reason_name
from dcp.client.seed_lookup import FoundSeeds, find_seeds
from dcp.client.settings import ConnectionSettings
from dcp.errors import BucketError, LakeError, NodeUnavailableError, SourceError
from dcp.lake.adapters.opening import NeedsSparkError, opened_store
from dcp.lake.adapters.spark_table import no_table
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.config.store_options import is_in_cloud
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.receive.remembered_nodes import RememberedNodes, remembered_nodes
from dcp.lake.receive.source_access import (
    Remembered,
    SourceAccess,
    ask_cluster,
    ask_node,
    source_access,
)
from dcp.lake.rounds.lake_state import filtered_lake_state, require_same_bucket
from dcp.lake.run.persistence_gate import NO_DISKS, disks_of
from dcp.lake.run.preview import refuse_unknown_names
from dcp.lake.run.set_up_check import Finding, SetUpCheck, Tell, attempts, checking, costs_of
from dcp.lake.run.store_check import try_store
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.tables.collections import replicas_of
from dcp.lake.tables.document_filter import filter_of
from dcp.lake.tables.lake_tables import DOCS, find_lake
from dcp.printable import number_ranges
from dcp.protocol import events as e
from dcp.protocol.credentials import Credentials
from dcp.protocol.negotiation import ALWAYS, CHANGE_STREAMS, CONTROL_TERMS, refused_controls
from dcp.protocol.position import Position
from dcp.protocol.refusals import bucket_cure, describe_status
from dcp.seeds import ConnectionString

if TYPE_CHECKING:
    from dcp.client.cluster_map import ClusterMap


def open_dcp(opened: NodeConnection, tell: Tell) -> None:
    with SetUpCheck(opened.address, tell, is_first=False) as set_up:
        opened.open(set_up.begin)
        assert set_up.progress is not None
        progress = set_up.progress
        wanted = {name for name, term in CONTROL_TERMS.items() if term.asked == ALWAYS}
        lacking = (wanted - progress.accepted_controls) | set(progress.refused_controls)
        # Most buckets have no history, by their owners' choice: nothing to warn of.
        refused = refused_controls(sorted(lacking - {CHANGE_STREAMS}))
        set_up.finding.say(
            f"opened at {opened.address} as {opened.name}",
            node=str(opened.address),
            name=opened.name,
            refused=refused,
        )
        set_up.finding.warnings.extend(costs_of(refused))


def try_stream(
    connection: NodeConnection,
    vbucket: int,
    high_seqno: int,
    deadline_seconds: float,
    cure: str,
    finding: Finding,
) -> None:
    """Stream a vbucket from its beginning until it brings a row or proves empty.

    Raises:
        BucketError: the user may not read the documents; the message says ``cure``.
        SourceError: the node refuses the stream, or ends it.
        NodeUnavailableError: nothing comes until the deadline, or the connection is lost.
    """
    stream, deadline = f"vbucket {vbucket} at {connection.address}", monotonic() + deadline_seconds
    connection.open_stream(vbucket, Position.beginning())
    told: list[str] = []
    while True:
        delivery = connection.next(max(0.0, deadline - monotonic()))
        if delivery is None:
            raise NodeUnavailableError(
                f"{stream}: found no rows in time, expected those of a snapshot up to seqno "
                f"{high_seqno}; look at the node (of a relay: is its group complete?), or "
                "give it longer (round.node_deadline_seconds)"
            )
        delivery.release()
        for event in delivery.events:
            if (error := _refusal(event, stream, cure)) is not None:
                raise error
            match event:
                case e.StreamOpened(failover_log=failover_log):
                    branches = [
                        [f"{each.vb_uuid:016x}", each.seqno] for each in failover_log.entries
                    ]
                    told.append(f"{stream}, high seqno {high_seqno}")
                    told.append(f"branch {branches[0][0]} of {len(branches)}")
                    finding.facts.update(vbucket=vbucket, failover_log=branches)
                    finding.facts["high_seqno"] = high_seqno
                case e.SnapshotStarted(snapshot=snapshot):
                    told.append(f"first snapshot {snapshot.start}-{snapshot.end}")
        is_idle = bool(told) and not high_seqno
        if is_idle or any(isinstance(event, _PROGRESS) for event in delivery.events):
            finding.say(", ".join([*told, *(["idle"] if is_idle else [])]))
            return


_PROGRESS: Final = (e.Items, e.SystemEventReceived, e.SnapshotCompleted, e.StreamAdvanced)
"""These events prove that the stream works."""


def _refusal(event: e.Event, stream: str, cure: str) -> SourceError | None:
    match event:
        case e.StreamRejected():
            return SourceError(f"{stream}: {event.detail}")
        case e.StreamEnded():
            reason = end_reason_name(event.reason)
            return SourceError(f"{stream}: found the stream ended: {reason}, expected its rows")
        case e.StreamRefused():
            told = f"{stream}: DCP_STREAM_REQ: found {describe_status(event.status)}"
            if REFUSALS.get(event.status) is Reaction.FAIL_BUCKET:
                return BucketError(f"{told}, {cure}")
            return SourceError(f"{told}, expected success")
    return None


def check_settings(load: Callable[[], Settings], tell: Tell) -> Settings:
    """Check and return the settings that ``load`` returns.

    Raises:
        ConfigError: a setting, a password's file or a certificate is wrong; ``tell`` got it before.
    """
    with checking("configuration", tell) as finding:
        settings = load()
        source, connection = settings.source, source_access(settings).consumer.connection
        credentials = source.credentials()
        if connection.tls is not None:
            connection.tls.client_context()
        finding.say(
            f"bucket {source.bucket!r} at {', '.join(source.seeds)}, {credentials.who}"
            f"{_whence(source)}, {'no TLS' if connection.tls is None else 'TLS'}"
        )
    return settings


def check_source(settings: Settings, tell: Tell) -> ProbedCluster:
    """Check every step from the seeds to the first rows of a vbucket.

    Raises:
        DcplakeError: the first step that fails; ``tell`` got it before.
    """
    access = source_access(settings)
    connection, credentials = access.consumer.connection, access.source.credentials()
    with opened_store(settings, starts_spark=False) as store:
        remembered = remembered_nodes(store, access.source.bucket)
        found, manifest = _ask_cluster(access, remembered, tell)
    with checking("cluster map", tell) as finding:
        _look_at_map(found, settings, connection, finding)
    with checking("data nodes", tell) as finding:
        cluster = probe_nodes(found, manifest, connection, credentials)
        _require_all_nodes(cluster, finding)
        vbucket, node = _small_vbucket(cluster)
    name = unique_name("dcplake-doctor", connection.bucket)
    opened = NodeConnection(node, connection, credentials, name)
    try:
        open_dcp(opened, tell)
        with checking("stream", tell) as finding:
            try_stream(
                opened,
                vbucket,
                cluster.high_seqnos[vbucket],
                settings.round.node_deadline_seconds,
                bucket_cure(found.bucket, credentials),
                finding,
            )
    finally:
        opened.close()
    return cluster


def _whence(source: SourceSettings) -> str:
    if source.credentials_folder:
        return f", told by {source.credentials_folder}"
    if not source.username:
        return ""
    where = source.password_file or f"the environment variable {source.password_env}"
    return f", the password in {where}"


def _look_up(
    written: Sequence[str],
    connection: ConnectionSettings,
    credentials: Credentials,
    tell: Tell,
) -> FoundSeeds:
    """Find the first nodes. A lookup by DNS or HTTP is a step of its own."""
    parsed = ConnectionString.parse(written, tls=connection.tls is not None)
    name = "HTTP" if parsed.over_http else "DNS SRV" if parsed.srv_name else ""
    if not name:
        return find_seeds(written, connection, credentials)
    with checking(name, tell) as finding:
        seeds = find_seeds(written, connection, credentials)
        finding.say(seeds.lookup, nodes=list(map(str, seeds.nodes)))
    return seeds


def _resolve(seeds: FoundSeeds, finding: Finding) -> None:
    found: dict[str, list[str]] = {}
    unknown: list[str] = []
    for seed in seeds.nodes:
        try:
            answers = socket.getaddrinfo(seed.host, seed.port, type=socket.SOCK_STREAM)
        except OSError as error:
            unknown.append(
                f"{seed.host}: {error.strerror or error}, expected a name that this machine can "
                "resolve: check source.seeds and its DNS"
            )
        else:
            found[seed.host] = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    if not found:
        raise NodeUnavailableError("; ".join([*unknown, *([seeds.lookup] if seeds.lookup else [])]))
    told = (f"{host}: {', '.join(addresses)}" for host, addresses in found.items())
    finding.say("; ".join(told), addresses=found)
    finding.warnings.extend(unknown)


def _ask_cluster(access: SourceAccess, remembered: Remembered, tell: Tell) -> SeedAnswer:
    """Ask a seed as a run does, and report the steps. Raises what ``ask_cluster`` raises."""

    def find(
        written: Sequence[str], connection: ConnectionSettings, credentials: Credentials
    ) -> FoundSeeds:
        seeds = _look_up(written, connection, credentials, told)
        with checking("name resolution", told) as finding:
            _resolve(seeds, finding)
        return seeds

    def ask(
        node: NodeAddress,
        connection: ConnectionSettings,
        credentials: Credentials,
        known: RememberedNodes | None,
    ) -> SeedAnswer:
        with SetUpCheck(node, told, is_first=True) as set_up:
            found, manifest = ask_node(node, connection, credentials, known, set_up.begin)
            collections = len(replicas_of(manifest))
            set_up.finding.say(
                f"{found.bucket!r}, uuid {found.bucket_uuid or '(not told)'}, "
                f"vbuckets: {found.vbucket_count}, collections: {collections}",
                uuid=found.bucket_uuid,
                vbuckets=found.vbucket_count,
                collections=collections,
            )
            if known is not None:
                set_up.finding.warnings.append(
                    "no seed answers, but a node that the lake remembers does: put nodes of this "
                    "cluster into source.seeds"
                )
        return found, manifest

    with attempts(tell) as told:
        return ask_cluster(access, remembered, find=find, ask=ask)


# --- the cluster


def _look_at_map(
    found: "ClusterMap", settings: Settings, connection: ConnectionSettings, finding: Finding
) -> None:
    nodes = [str(node) for node in found.addresses]
    if not nodes:
        kind = "TLS port of a data node" if connection.tls is not None else "data node"
        raise NodeUnavailableError(
            f"cluster map of bucket {found.bucket!r}, revision {found.rev}: found no {kind}, "
            "expected one: check the cluster, and source.tls"
        )
    disks = disks_of(settings.policy.persist_to, found)
    kind = ", ephemeral" if found.is_ephemeral else ""
    finding.say(
        f"revision {found.rev}, data nodes: {', '.join(nodes)}, replicas: {found.replica_count}"
        f"{kind}",
        revision=found.rev,
        nodes=nodes,
        replicas=found.replica_count,
        ephemeral=found.is_ephemeral,
    )
    if disks < settings.policy.persist_to:
        finding.warnings.append(NO_DISKS)
    homeless = [each for each in range(found.vbucket_count) if found.owner(each) is None]
    if homeless:
        finding.facts["vbuckets_without_node"] = homeless
        finding.warnings.append(
            f"vbuckets {number_ranges(homeless)} have no node: a run leaves them out, until the "
            "cluster fails over or rebalances"
        )


def _require_all_nodes(cluster: ProbedCluster, finding: Finding) -> None:
    if cluster.unreachable:
        told = "; ".join(f"{node}: {reason}" for node, reason in cluster.unreachable.items())
        raise NodeUnavailableError(
            f"{len(cluster.unreachable)} of {len(cluster.map.addresses)} data nodes: {told}; "
            "expected this machine, and those of Spark's executors, to reach every node at the "
            "address that the cluster map has; check DNS, routes and firewalls for all of them"
        )
    seqnos = sum(cluster.high_seqnos.values())
    finding.say(
        f"all reached, active vbuckets: {len(cluster.high_seqnos)}, seqnos of all: {seqnos:,}",
        active_vbuckets=len(cluster.high_seqnos),
        seqnos=seqnos,
    )


def _small_vbucket(cluster: ProbedCluster) -> tuple[int, NodeAddress]:
    """Return the smallest vbucket, preferably with documents, and its node."""
    candidates = [
        (seqno == 0, seqno, vbucket, node)
        for vbucket, seqno in cluster.high_seqnos.items()
        if vbucket < cluster.map.vbucket_count and (node := cluster.map.owner(vbucket)) is not None
    ]
    if not candidates:
        raise NodeUnavailableError(
            f"bucket {cluster.map.bucket!r}: found no active vbucket, expected some: the bucket is "
            "still being made, or the cluster is not well"
        )
    *_, vbucket, node = min(candidates)
    return vbucket, node


# --- the lake


def check_lake(settings: Settings, cluster: ProbedCluster, tell: Tell) -> None:
    """Check that the location has no lake, or a lake of this bucket that fits the settings.

    Raises:
        SetupError: the store refuses writes; or Spark is needed and does not start.
        LakeError: the lake holds another bucket, the location holds a foreign table, or the store
            overwrites files.
        ConfigError: a run would refuse the names of collections, or the lake's start.
    """
    with (
        opened_store(settings, starts_spark=False) as silent,
        opened_store(settings) as starting,  # which starts Spark where it is asked for its session
    ):
        root = silent.location.root  # a catalog would be asked where the table is
        there = None if root is None else silent.location.of_table(CHANGES_TABLE)
        store = starting if settings.lake.on_s3 and there is None else silent
        if root is not None and (settings.lake.on_s3 or (is_in_cloud(root) and there is not None)):
            try_store(there, store.start_spark, root, tell)
        with checking("lake", tell) as finding:
            _look_at_lake(store, settings, cluster, finding)


def _refuse_remains(store: LakeStore) -> None:
    """Refuse files of tables at a location without a lake, as a run does before it makes one."""
    changes, docs = (store.table(name) for name in (CHANGES_TABLE, DOCS.name))
    there = store.location.of_table(CHANGES_TABLE)
    if there is not None and there.has_data():
        raise no_table(changes.where, may_have_data=True)
    if docs.exists():
        raise LakeError(
            f"{docs.where}: found a Delta table, expected none where no lake is: it is left alone; "
            "set lake.root to another location, or delete the table"
        )


def _look_at_lake(
    store: LakeStore, settings: Settings, cluster: ProbedCluster, finding: Finding
) -> None:
    location = store.location
    settings.privacy.require_key()
    try:
        lake = find_lake(store)
        if lake is None:
            location.refuse_location_in_table()
            _refuse_remains(store)
            refuse_unknown_names(settings, cluster, None)
            filter_of(None, settings, cluster.manifest)
            finding.say(f"{location}: none yet, the first run makes it")
            return
        require_same_bucket(lake, cluster, settings.source.bucket)
        refuse_unknown_names(settings, cluster, lake)
        filtered_lake_state(lake, filter_of(lake, settings, cluster.manifest))
    except NeedsSparkError as unread:
        if location.root is not None and location.of_table(CHANGES_TABLE) is not None:
            raise LakeError(
                f"{location}: found a Delta log that delta-rs cannot read; dcplake status starts "
                "Spark, and says what is wrong and what to do"
            ) from unread
        finding.say(f"{location}: not looked at, which takes Spark: `dcplake status` does")
        return
    finding.say(f"{location}: of this bucket", lake_id=lake.identity.lake_id)
