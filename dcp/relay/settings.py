"""The settings of a relay: its upstream, the address it serves on, and its limits."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import ClassVar, Final

from dcp.client.addresses import NodeAddress, parse_seeds
from dcp.client.settings import ConnectionSettings
from dcp.errors import ConfigError
from dcp.protocol.credentials import Credentials
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.protocol.flow_strategy import FlowSpec
from dcp.protocol.window_policies import FlowSettings
from dcp.seeds import DEFAULT_SEED
from dcp.server.model.server_settings import ServerSettings
from dcp.setting_keys import Section, key, key_of, section_of, texts_of
from dcp.tls_settings import TlsSettings
from dcp.types import U16_MAX

MIB: Final = 1024 * 1024
FULL_WINDOWS: Final = 4
"""So many connections have windows as large as is set; more of them share what these have."""


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of an address to listen on; an IPv6 host stands in brackets.

    Raises:
        ConfigError: the text is no HOST:PORT.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or int(port) > U16_MAX:
        raise ConfigError(f"found {text!r}, expected HOST:PORT, for example 0.0.0.0:11210")
    return host, int(port)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayServerSettings(ServerSettings):
    """The server of a relay: the node that consumers see."""

    subject: ClassVar[str] = "relay "

    port: int = key_of(ServerSettings, "port", option="--listen HOST:PORT")
    tls: TlsSettings | None = key_of(
        ServerSettings,
        "tls",
        text="With it the relay listens with TLS, too.",
        parts=TlsSettings.listener_options("--listen-tls"),
    )
    tls_port: int | None = key_of(ServerSettings, "tls_port", option="--listen-tls-port")
    users: Mapping[str, str] = key_of(ServerSettings, "users", option="--listen-user NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings(Section):
    """A relay of one bucket."""

    subject: ClassVar[str] = "relay "

    upstream: tuple[str, ...] = key(
        MISSING,
        "Nodes of the cluster; one that answers is enough.",
        option="--upstream HOST:PORT,…",
        parse=texts_of,
    )
    bucket: str = key_of(ServerSettings, "bucket")
    credentials: Credentials = key(MISSING, "Who signs in at the cluster.")
    data_folder: Path = key_of(
        ServerSettings,
        "data_folder",
        default=MISSING,
        text="Where the relay keeps what it received, over restarts too.",
    )
    """It belongs to one process. There is no default: a relay has no document in memory alone."""
    tls: TlsSettings | None = key_of(ConnectionSettings, "tls")
    """With it the relay speaks encrypted with the cluster."""
    checkpoint_quota_bytes: int = key_of(
        ServerSettings, "checkpoint_quota_bytes", option="--memory-quota"
    )
    flow_spec: FlowSpec = key(
        "max",
        "Whom the cluster waits for: max (the fastest consumer), min (the slowest), or "
        "tagged,g:TAG/SIZE (the slowest of a group); t:5s: how long for one that is stuck.",
        option="--fc SPEC",
        parse=parse_flow_spec,
    )
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
    """It may be longer than our own consumers allow: other consumers connect, too."""
    listen: tuple[str, int] = key(
        DEFAULT_SEED,
        "Where consumers connect; port 0 takes a free one.",
        option="--listen HOST:PORT",
        parse=parse_listen,
    )
    http_port: int = key_of(
        ServerSettings,
        "http_port",
        default=0,
        text="Port for HTTP; 0 takes a free one.",
    )
    """A relay has no usual ports beside `listen`: a node of its cluster may have them."""
    listen_tls: TlsSettings | None = key_of(RelayServerSettings, "tls")
    tls_port: int = key_of(
        RelayServerSettings,
        "tls_port",
        default=0,
        text="Port for consumers that speak TLS; 0 takes a free one.",
    )
    https_port: int = key_of(
        ServerSettings,
        "https_port",
        default=0,
        text="Port for HTTPS, if consumers may speak TLS; 0 takes a free one.",
    )
    users: Mapping[str, str] = key_of(
        ServerSettings,
        "users",
        text="Names and passwords of consumers; empty: the one who signs in upstream.",
    )

    flush_seconds: float = key_of(ServerSettings, "flush_seconds")
    seed: int | None = key_of(ServerSettings, "seed")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.upstream:
            raise ConfigError(
                f"{self.named('upstream')}: found no address, expected at least one host:port"
            )
        if self.credentials.by_certificate and not self.users:
            raise ConfigError(
                f"{self.named('users')}: found none, and a certificate that signs in upstream, "
                "expected a user of consumers: --listen-user, --listen-password-file"
            )
        # They reject what is wrong with addresses, ports and names.
        _ = self.addresses, self.served("", 1)

    @property
    def addresses(self) -> tuple[NodeAddress, ...]:
        """The addresses of the nodes in ``upstream``, without a port at the data service's."""
        try:
            return parse_seeds(self.upstream, tls=self.tls is not None)
        except ConfigError as error:
            raise ConfigError(f"{self.named('upstream')}: {error}") from None

    @property
    def connection(self) -> ConnectionSettings:
        """The settings of a connection that asks the cluster questions."""
        return ConnectionSettings(self.bucket, tls=self.tls)

    def served(self, bucket_uuid: str, vbuckets: int) -> RelayServerSettings:
        """Return the settings of the server that consumers see."""
        own = {self.credentials.username: self.credentials.password.reveal()}
        host, port = self.listen
        # Without TLS, the default of 0 asks for no port.
        none = 0 if self.listen_tls is not None else None
        return section_of(
            RelayServerSettings,
            self,
            vbuckets=vbuckets,
            bucket_uuid=bucket_uuid,
            users=self.users or own,
            host=host,
            port=port,
            tls=self.listen_tls,
            tls_port=self.tls_port or none,
            https_port=self.https_port or none,
        )
