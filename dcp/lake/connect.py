"""From settings to what the client needs, and the look at the cluster before a round."""

from dcp.client.addresses import PLAIN_PORT, TLS_PORT, parse_seeds
from dcp.client.probe import ClusterView, probe_cluster
from dcp.client.settings import ConnectionSettings, ConsumerSettings, TlsSettings
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.live_place import LivePlace
from dcp.lake.receive import SourceAccess
from dcp.lake.settings import Settings, SourceSettings
from dcp.protocol.credentials import ALL_MECHANISMS, SCRAM_MECHANISMS, Credentials, Secret


def source_access(settings: Settings, password: Secret | None = None) -> SourceAccess:
    """Return what tasks need to connect; reads the password unless it is given.

    Raises:
        ConfigError: a seed is no address, or the password cannot be found.

    """
    source = settings.source
    return SourceAccess(
        seeds=_seeds(source),
        consumer=ConsumerSettings(
            connection=connection_settings(source, settings.flow_control),
            node_deadline_seconds=settings.round.node_deadline_seconds,
        ),
        credentials=credentials(source, password),
        flow_control=settings.flow_control,
        quiet_seconds=settings.round.quiet_seconds,
        live=LivePlace.of(settings),
    )


def _seeds(source: SourceSettings) -> tuple[str, ...]:
    default_port = TLS_PORT if source.tls else PLAIN_PORT
    return tuple(str(address) for address in parse_seeds(source.seeds, default_port))


def connection_settings(source: SourceSettings, flow: FlowControlSettings) -> ConnectionSettings:
    """Return how one connection is made and kept."""
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
        tls=TlsSettings(source.tls_ca_file or None) if source.tls else None,
    )


def credentials(source: SourceSettings, password: Secret | None = None) -> Credentials:
    """Return user and password; PLAIN is allowed where nobody can listen, or by the settings."""
    mechanisms = ALL_MECHANISMS if source.tls or source.allow_plain else SCRAM_MECHANISMS
    return Credentials(source.username, password or Secret(source.password()), mechanisms)


def look_at_cluster(access: SourceAccess) -> ClusterView:
    """Ask the cluster for its map and high seqnos.

    Raises:
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
        NodeUnavailableError: no seed answered.

    """
    return probe_cluster(access.seeds, access.consumer.connection, access.credentials)
