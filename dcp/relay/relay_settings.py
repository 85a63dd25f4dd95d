"""The settings of a relay: its upstream, the address it serves on, and its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.settings import ConnectionSettings, TlsSettings
from dcp.errors import ConfigError
from dcp.protocol.credentials import Credentials
from dcp.protocol.flow_strategy import FlowSpec
from dcp.server.model.cluster_settings import ClusterSettings, TlsFiles
from dcp.types import U32_MAX

MIB: Final = 1024 * 1024
FULL_WINDOWS: Final = 4
"""So many connections have windows as large as is set; more of them share what these have."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """A relay of one bucket.

    ``upstream`` are nodes of the cluster; with ``tls`` they are spoken to encrypted.
    ``data_folder`` keeps what it got over a restart, and belongs to one process.
    ``flow_spec`` says which consumers the cluster waits for (``dcp/protocol/flow_spec.py``).
    ``window_bytes`` is the flow-control window of each connection to a node of the cluster, as
    long as there are no more than four; more of them share four such windows, down to 1 MiB each.
    ``hold_seconds``: how long a group may lack members before its streams are closed.
    ``consumer_ack_seconds``: how long after it has done with something a consumer acknowledges it
    at the latest: silence up to that proves nothing.
    ``checkpoint_quota_bytes``: what the newest items may take in memory; slow consumers are served
    from the disk beyond it.
    ``users`` may connect; empty: the one that signs in upstream.
    ``seed`` fixes what is random, for tests.

    More than 15 attributes: one is one setting.
    """

    upstream: tuple[NodeAddress, ...]
    bucket: str
    credentials: Credentials
    data_folder: Path
    tls: TlsSettings | None = None
    flow_spec: FlowSpec = field(default_factory=FlowSpec)
    window_bytes: int = 10 * MIB
    hold_seconds: float = 0.0
    consumer_ack_seconds: float = 5.0
    host: str = "127.0.0.1"
    port: int = 0
    http_port: int = 0
    listen_tls: TlsFiles | None = None
    tls_port: int = 0
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint_quota_bytes: int = 256 * MIB
    flush_seconds: float = 0.1
    seed: int | None = None

    def __post_init__(self) -> None:
        """Reject a relay that cannot work."""
        if not self.upstream:
            raise ConfigError("relay upstream: found no address, expected at least one host:port")
        if not 1 <= self.window_bytes <= U32_MAX:
            raise ConfigError(
                f"relay window: found {self.window_bytes} bytes, expected 1 to {U32_MAX}"
            )
        if not 0 <= self.hold_seconds < float("inf"):
            raise ConfigError(f"relay hold: found {self.hold_seconds} seconds, expected 0 or more")
        if not 0 <= self.consumer_ack_seconds < float("inf"):
            raise ConfigError(
                f"relay consumer ack: found {self.consumer_ack_seconds} seconds, expected 0 or more"
            )
        self.served("", 1)  # rejects what is wrong with ports, names and quotas

    @property
    def connection(self) -> ConnectionSettings:
        """The settings of a connection that asks the cluster questions."""
        return ConnectionSettings(self.bucket, tls=self.tls)

    def served(self, bucket_uuid: str, vbuckets: int) -> ClusterSettings:
        """Return the settings of the cluster of one node that consumers see."""
        own = {self.credentials.username: self.credentials.password.reveal()}
        has_tls = self.listen_tls is not None
        return ClusterSettings(
            nodes=1,
            vbuckets=vbuckets,
            bucket=self.bucket,
            bucket_uuid=bucket_uuid,
            users=self.users or own,
            administrators=frozenset(),
            host=self.host,
            ports=(self.port,),
            http_ports=(self.http_port,),
            tls=self.listen_tls,
            tls_ports=(self.tls_port,) if has_tls else (),
            data_folder=self.data_folder,
            checkpoint_quota_bytes=self.checkpoint_quota_bytes,
            keeps_values=False,
            flush_seconds=self.flush_seconds,
            record_seqnos=False,
            record_branches=False,
            seed=self.seed,
        )
