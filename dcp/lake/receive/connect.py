"""From settings to what the client needs, and the look at the cluster before a round."""

from typing import TYPE_CHECKING, Final

from dcp.client.addresses import parse_seeds
from dcp.client.probe import ClusterView, probe_cluster
from dcp.client.settings import ConnectionSettings, ConsumerSettings, TlsSettings
from dcp.errors import ConfigError
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.monitor.live_place import LivePlace
from dcp.lake.receive.receive import SourceAccess
from dcp.lake.receive.system_events import DroppedPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CARRIERS: Final = ("spark.executorEnv", "spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
_ENCRYPTION: Final = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")


def source_access(settings: Settings) -> SourceAccess:
    """Return what tasks need to connect.

    Raises:
        ConfigError: a seed is no address.

    """
    source = settings.source
    return SourceAccess(
        seeds=tuple(str(address) for address in parse_seeds(source.seeds, tls=source.tls)),
        consumer=ConsumerSettings(
            connection=connection_settings(source, settings.flow_control),
            node_deadline_seconds=settings.round.node_deadline_seconds,
        ),
        source=source,
        flow_control=settings.flow_control,
        quiet_seconds=settings.round.quiet_seconds,
        dropped=DroppedPolicy(settings.policy.dropped),
        live=LivePlace.of(settings),
    )


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


def refuse_open_password(spark: "SparkSession", source: SourceSettings) -> None:
    """Refuse a session of somebody else that would hand the password to strangers.

    What ``spark.executorEnv`` names becomes a part of every task, the others are settings; and
    Spark's processes give tasks and settings to whoever asks, unless they authenticate each other.

    Raises:
        ConfigError: the password is in such a setting, and strangers are let in.

    """

    def is_on(key: str) -> bool:
        return (spark.conf.get(key, "") or "").lower() == "true"

    names = [f"{prefix}.{source.password_env}" for prefix in _CARRIERS]
    carrier = next((name for name in names if spark.conf.get(name, "")), None)
    if carrier is not None and not (is_on("spark.authenticate") and any(map(is_on, _ENCRYPTION))):
        raise ConfigError(
            f"found the password in {carrier}, which Spark gives to whoever asks over the network;"
            f" expected spark.authenticate and {_ENCRYPTION[0]} to be true, or the password where"
            " the executors find it themselves (docs/operations.md, How tasks get the password)"
        )


def look_at_cluster(access: SourceAccess) -> ClusterView:
    """Ask the cluster for its map and high seqnos.

    Raises:
        ConfigError: the password cannot be found.
        AuthenticationError: user or password refused.
        BucketError: no such bucket, or no access to it.
        NodeUnavailableError: no seed answered.

    """
    return probe_cluster(access.seeds, access.consumer.connection, access.source.credentials())
