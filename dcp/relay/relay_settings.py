"""The settings of a relay: its upstream, the address it serves on, and its limits."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from dcp.client.addresses import NodeAddress
from dcp.client.settings import ConnectionSettings, TlsSettings
from dcp.errors import ConfigError
from dcp.protocol.credentials import Credentials
from dcp.protocol.flow_strategy import FlowSpec
from dcp.protocol.window_policies import FlowSettings
from dcp.server.model.cluster_settings import ClusterSettings, NodeSettings, TlsFiles
from dcp.setting_keys import Section, key, key_of, section_of
from dcp.types import U16_MAX

MIB: Final = 1024 * 1024
FULL_WINDOWS: Final = 4
"""So many connections have windows as large as is set; more of them share what these have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings(NodeSettings):
    """A relay of one bucket."""

    subject: ClassVar[str] = "relay "

    upstream: tuple[NodeAddress, ...]
    """Nodes of the cluster."""
    bucket: str = key_of(ClusterSettings, "bucket")
    credentials: Credentials
    data_folder: Path = key_of(
        ClusterSettings,
        "data_folder",
        default=MISSING,
        text="Where the relay keeps what it received, over restarts too.",
    )
    """It belongs to one process. There is no default: a relay has no document in memory alone."""
    tls: TlsSettings | None = None
    """With it the nodes are spoken to encrypted."""
    checkpoint_quota_bytes: int = key_of(
        NodeSettings, "checkpoint_quota_bytes", option="--memory-quota"
    )
    flow_spec: FlowSpec = field(default_factory=FlowSpec)
    """Says which consumers the cluster waits for (``dcp/protocol/flow_spec.py``)."""
    window_bytes: int = key_of(
        FlowSettings,
        "window_bytes",
        text="Flow-control window of each connection to a node of the cluster. More than four "
        "connections share the bytes of four windows; each has 1 MiB at least.",
        least=1,
        option="--window-bytes",
    )
    hold_seconds: float = key(
        0.0,
        "How long a group may be smaller than its SIZE before its streams are closed.",
        unit="seconds",
        least=0,
        option="--hold",
    )
    consumer_ack_seconds: float = key_of(
        FlowSettings,
        "ack_seconds",
        text="How late consumers may acknowledge what they are done with (kv_engine's and "
        "dcplake's do within 5). A consumer that stands still for this time plus t of --fc is "
        "stuck.",
        least=0,
        most=None,
        option="--consumer-ack-seconds",
    )
    """Without our limits, as consumers of others come, too."""
    port: int = 0
    http_port: int = key(
        0, "Port for HTTP; 0 takes a free one.", least=0, most=U16_MAX, option="--http-port"
    )
    listen_tls: TlsFiles | None = None
    tls_port: int = key(
        0,
        "Port for consumers that speak TLS; 0 takes a free one.",
        least=0,
        most=U16_MAX,
        option="--listen-tls-port",
    )
    https_port: int = key(
        0,
        "Port for HTTPS, if consumers may speak TLS; 0 takes a free one.",
        least=0,
        most=U16_MAX,
        option="--https-port",
    )
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """They may connect; empty: the one who signs in upstream."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.upstream:
            raise ConfigError("relay upstream: found no address, expected at least one host:port")
        self.served("", 1)  # rejects what is wrong with ports and names

    @property
    def connection(self) -> ConnectionSettings:
        """The settings of a connection that asks the cluster questions."""
        return ConnectionSettings(self.bucket, tls=self.tls)

    def served(self, bucket_uuid: str, vbuckets: int) -> ClusterSettings:
        """Return the settings of the cluster of one node that consumers see."""
        own = {self.credentials.username: self.credentials.password.reveal()}

        def encrypted(port: int) -> tuple[int, ...]:
            return (port,) if port or self.listen_tls is not None else ()

        return section_of(
            ClusterSettings,
            self,
            nodes=1,
            vbuckets=vbuckets,
            bucket_uuid=bucket_uuid,
            users=self.users or own,
            administrators=frozenset(),
            ports=(self.port,),
            http_ports=(self.http_port,),
            tls=self.listen_tls,
            tls_ports=encrypted(self.tls_port),
            https_ports=encrypted(self.https_port),
            keeps_values=False,
            record_seqnos=False,
            record_branches=False,
        )
