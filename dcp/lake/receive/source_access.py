"""Derives from the lake's settings how driver and tasks connect; asks the cluster for its map.

If no seed answers, dcplake asks the nodes that the lake remembers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dcp.client.cluster_map import ClusterMap
from dcp.client.probe import ClusterView, ask_map, probe_cluster
from dcp.client.settings import ConnectionSettings, ConsumerSettings, TlsSettings
from dcp.errors import NodeUnavailableError, RemoteProtocolError, SourceError
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.receive.dropped_policies import DroppedPolicies, DroppedPolicy
from dcp.lake.receive.known_nodes import KnownNodes
from dcp.lake.task_monitor.live_place import LivePlace
from dcp.protocol.credentials import Credentials
from dcp.protocol.refusals import raise_refusal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """The connection settings that a task needs besides its plan.

    The password is not among them: the task reads it where it runs, since Spark serves task data.
    ``seeds`` are as the settings have them: the driver finds nodes by them, tasks by their plan.
    """

    seeds: tuple[str, ...]
    consumer: ConsumerSettings
    source: SourceSettings
    flow_control: FlowControlSettings
    quiet_seconds: float
    dropped: DroppedPolicies = field(default_factory=DroppedPolicies)
    known: KnownNodes | None = None
    """Asked where no seed answers."""
    live: LivePlace | None = None
    """The folder of the tasks' live files; None: there are none."""

    def of_bucket(self, bucket_uuid: str) -> "SourceAccess":
        """Return the same for one bucket: what was made anew under its name is refused."""
        connection = replace(self.consumer.connection, bucket_uuid=bucket_uuid)
        return replace(self, consumer=replace(self.consumer, connection=connection))


def source_access(settings: Settings, *, change_streams: bool = True) -> SourceAccess:
    """Return what driver and tasks need to connect; ``change_streams`` asks for all versions."""
    source = settings.source
    return SourceAccess(
        seeds=source.seeds,
        consumer=ConsumerSettings(
            connection=replace(
                connection_settings(source, settings.flow_control),
                change_streams=change_streams,
            ),
            node_deadline_seconds=settings.round.node_deadline_seconds,
        ),
        source=source,
        flow_control=settings.flow_control,
        quiet_seconds=settings.round.quiet_seconds,
        dropped=DroppedPolicies(DroppedPolicy(settings.policy.dropped)),
        live=LivePlace.of(settings),
    )


def connection_settings(source: SourceSettings, flow: FlowControlSettings) -> ConnectionSettings:
    """Return how one connection is made and kept."""
    place = source.connection_string()
    return ConnectionSettings(
        bucket=source.bucket,
        window_bytes=flow.fixed_window_bytes,
        allow_no_flow_control=flow.allow_no_flow_control,
        unread_limit_bytes=flow.window_bytes,
        stream_window_bytes=flow.stream_window_bytes,
        ack_fraction=flow.ack_fraction,
        ack_seconds=flow.ack_seconds,
        noop_interval_seconds=source.noop_interval_seconds,
        connect_timeout_seconds=source.connect_timeout_seconds,
        bootstrap_timeout_seconds=source.bootstrap_timeout_seconds,
        receiver_group_tag=source.group_tag(),
        tls=_tls_settings(source) if place.tls else None,
        network=place.network,
    )


def _tls_settings(source: SourceSettings) -> TlsSettings:
    return TlsSettings(
        source.tls_ca_file or None, source.tls_cert_file or None, source.tls_key_file or None
    )


def query_cluster(
    access: SourceAccess, remembered: Callable[[], KnownNodes | None] = lambda: None
) -> ClusterView:
    """Ask the cluster for its map and high seqnos.

    ``remembered`` tells nodes to ask where no seed answers and ``access`` knows none.

    Raises:
        ConfigError: the password cannot be found.
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
        NodeUnavailableError: no seed answered, nor does a node that is known.
        LakeError: no seed answered with the bucket, and ``remembered`` tells of another one.

    """
    return _ask(access, remembered, probe_cluster, lambda found: found.map)


def query_map(access: SourceAccess) -> ClusterMap:
    """Ask the cluster for its map alone; raises as ``query_cluster``."""
    return _ask(access, lambda: None, ask_map, lambda found: found)


_Question = Callable[[Sequence[str], ConnectionSettings, Credentials], T]


def _ask(
    access: SourceAccess,
    remembered: Callable[[], KnownNodes | None],
    question: _Question[T],
    map_of: Callable[[T], ClusterMap],
) -> T:
    settings, credentials = access.consumer.connection, access.source.credentials()
    try:
        return question(access.seeds, settings, credentials)
    except (SourceError, RemoteProtocolError) as failure:
        known = access.known or remembered()
        theirs = None if known is None else known.connection_settings(settings)
        if known is None or theirs is None:
            raise
        try:
            found = question([known.place], theirs, credentials)
            known.require_same_bucket(map_of(found))
        except (SourceError, RemoteProtocolError) as other:
            raise_refusal([failure, other])
            told = f"{failure}; nor do the nodes that the lake remembers: {other}"
            raise NodeUnavailableError(told) from other
        return found
