import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Final, get_args

from dcp.errors import ConfigError, SecretError
from dcp.protocol.negotiation import MAKES_UP_METADATA, Release
from dcp.protocol.window_policies import FlowSettings
from dcp.seeds import DEFAULT_BUCKET, HTTP_PORT, HTTPS_PORT, PLAIN_PORT, TLS_PORT
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.resume_rules import Rules
from dcp.setting_keys import Section, key, key_of
from dcp.tls_settings import TlsSettings
from dcp.types import U16_MAX

OUTBOX_BYTES: Final = 64 * 1024
"""Most bytes of answers that wait for a client; beyond it, its requests are not read."""
MAX_VBUCKETS: Final = 1024
_CHECKPOINTS_PER_VBUCKET: Final = 10
"""Number of full checkpoints of each vbucket that fit the quota (kv_engine ``max_checkpoints``)."""
MAX_NODES: Final = 128
_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9_.%-]{1,100}")
"""Couchbase's rule: LIST_BUCKETS separates names by spaces, URLs by slashes."""
MAX_REPLICAS: Final = 3
_TELLS_HIGH_SEQNOS: Final[Release] = (7, 1)
"""First release whose GET_ALL_VB_SEQNOS counts prepares and aborts, for clients with Collections
(kv_engine ``ep_engine.cc``, commit 983266111, of branches 7.1 and newer)."""


def _of_other_ports(protocol: str, usual: int) -> str:
    return (
        f"The first node's port for {protocol}, the others follow; 0 takes free ones. Without it: "
        f"{usual} if `port` is {PLAIN_PORT}, else free ones."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(Section):
    """Nodes that share the vbuckets of one bucket: what the producer and a relay both have.

    The producer's are `ClusterSettings`, a relay's `RelayServerSettings`.
    """

    nodes: int = key(1, "Data nodes.", least=1, most=MAX_NODES, option="--nodes")
    vbuckets: int = key(
        64, "Vbuckets of the bucket.", least=1, most=MAX_VBUCKETS, option="--vbuckets"
    )
    host: str = key("127.0.0.1", "Address to listen on.", option="--host ADDRESS")
    port: int = key(
        0,
        "The first node's port, the others follow; 0 takes free ones.",
        least=0,
        most=U16_MAX,
        option="--port",
    )
    tls: TlsSettings | None = key(
        None,
        "With it the nodes listen with TLS, too.",
        parts=TlsSettings.listener_options("--tls"),
    )
    http_port: int | None = key(
        None, _of_other_ports("HTTP", HTTP_PORT), least=0, most=U16_MAX, option="--http-port"
    )
    tls_port: int | None = key(
        None,
        _of_other_ports("the encrypted protocol", TLS_PORT),
        least=0,
        most=U16_MAX,
        option="--tls-port",
    )
    https_port: int | None = key(
        None, _of_other_ports("HTTPS", HTTPS_PORT), least=0, most=U16_MAX, option="--https-port"
    )
    bucket: str = key(DEFAULT_BUCKET, "The bucket.", option="--bucket NAME")
    bucket_type: BucketType = key(
        BucketType.COUCHBASE,
        "An ephemeral bucket has no disk, and a crash loses all of it.",
        choices=tuple(BucketType),
        option="--bucket-type",
    )
    users: Mapping[str, str] = key({}, "Names and passwords.", may_be_secret=True)
    bucket_uuid: str = key("", "Uuid of the bucket; empty: a new one.")
    cluster_uuid: str = key(
        "", "Uuid of the cluster in its map, where servers from 7.6 on have one; empty: none."
    )
    external_host: str = key(
        "",
        "External address of every node in the map, with the same ports; empty: none.",
    )
    checkpoint_quota_bytes: int = key(
        256 * 1024 * 1024,
        "Memory for the newest items; beyond it, slow streams read from disk again.",
        unit="bytes",
        least=1,
    )
    checkpoint_items: int = key(
        10_000,
        "Items that a checkpoint may hold; one always fits. A stream that starts below the oldest "
        "item in memory reads a disk snapshot first.",
        least=0,
    )
    keeps_values: bool = key(
        False,
        "Whether memory holds the values of documents that are on disk, too; else they are read "
        "from there each time.",
    )
    idle_timeout_seconds: float = key(
        360.0,
        "How long a client that takes NOOPs may be silent; 0: forever. Other clients may be silent "
        "forever, as with Couchbase servers; TCP's keep-alive finds their dead peers.",
        unit="seconds",
        least=0,
    )
    authentication_seconds: float = key(
        300.0,
        "How long a client may stay connected without logging in; 0: forever.",
        unit="seconds",
        least=0,
    )
    last_words_seconds: float = key(
        2.0,
        "How long a client may take to read the last bytes when the server ends its connection, "
        "also when the cluster stops. Couchbase servers have no such setting.",
        unit="seconds",
        least=0,
    )
    large_frame_seconds: float = key(
        10.0,
        "Time in which a client must send part of a large frame while other clients wait for room, "
        "divided by one more than their number (``large_frames.py``).",
        unit="seconds",
        least=0,
    )
    stuck_name_regex: str = key(
        "",
        "Close consumers that acknowledge nothing of a full window, if this matches the whole name "
        "that `dcp` statistics show, as in 'eq_dcpq:reader.*'; without it: none.",
        option="--stuck-name-regex REGEX",
    )
    """kv_engine's ``dcp_disconnect_when_stuck_name_regex``; ``stuck_timeout_seconds`` is its
    ``dcp_disconnect_when_stuck_timeout_seconds``."""
    stuck_timeout_seconds: float = key(
        720.0,
        "Time without an acknowledgement after which a consumer of such a name is closed.",
        unit="seconds",
        least=0,
        option="--stuck-timeout",
    )
    max_connections: int = key(
        5_000, "Client connections to a node; it closes further ones at once.", least=1
    )
    max_streams: int = key(
        256 * 1024,
        "Streams that all clients together may open on a node (``stream_quota.py``).",
        least=1,
    )
    replicas: int = key(
        0,
        "Replicas of each vbucket on other nodes, filled over DCP; a failover needs 1.",
        least=0,
        most=MAX_REPLICAS,
        option="--replicas",
    )
    """Replicas without a node are absent until a node joins."""
    data_folder: Path | None = key(
        None,
        "Folder of the bucket's data, which survives a restart; none: memory only.",
        option="--data FOLDER",
    )
    """It belongs to one process at a time, and is made for one bucket and number of vbuckets. The
    cluster has as many nodes as it had at last. Writes go there within ``flush_seconds``, or
    earlier when much is pending. None: the disk is memory; what a client sent together is on it
    before the last answer leaves.
    """
    flush_seconds: float = key(
        0.1, "Longest time between a write and its place on disk.", unit="seconds", above=0
    )
    persistence_wait_seconds: float = key(
        30.0, "Longest wait of a client for a seqno on disk.", unit="seconds", least=0
    )
    stale_removal_seconds: float = key(
        60.0,
        "How often an ephemeral bucket removes unneeded versions and tombstones.",
        unit="seconds",
        above=0,
    )
    metadata_purge_age_seconds: float | None = key(
        None,
        "Age at which tombstones are purged. None: Couchbase's default for the bucket type, 3 days "
        "or 60 seconds; infinity: never.",
        unit="seconds",
        least=0,
        most=float("inf"),
    )
    history_retention_bytes: int = key(
        0,
        "Replaced versions that the disk keeps, like a Magma bucket with change history; 0: none.",
        unit="bytes",
        least=0,
        option="--history-retention",
    )
    """The vbuckets share it. Clients can then ask for all versions of documents."""
    rules: Rules = key(
        "document",
        "Rules of rollback, flow control and streams without values: from the published documents, "
        "or from kv_engine's code.",
        choices=get_args(Rules),
        option="--rules",
    )
    release: Release = key(
        (8, 0), "Version that the nodes report. Clients choose by it how to open DCP."
    )
    """Releases below 6.5 do not know NO_VALUE_WITH_UNDERLYING_DATATYPE."""
    prepare_extra_bytes: int = key_of(
        FlowSettings, "prepare_extra_bytes", is_internal=False, option="--prepare-extra-bytes"
    )
    """A consumer that acknowledges the bytes it received loses these from its window with each
    prepare."""
    seed: int | None = key(None, "Fixes what is random, such as uuids; none: nothing is fixed.")
    clock: Callable[[], float] = key(time, "Returns seconds since 1970.", is_internal=True)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        try:
            re.compile(self.stuck_name_regex)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"{self.named('stuck_name_regex')}: found {self.stuck_name_regex!r}, expected a "
                f"regular expression: {error}"
            ) from None
        self._check_bucket_type()
        self._check_ports()
        if not _BUCKET_NAME.fullmatch(self.bucket):
            raise ConfigError(
                f"{self.named('bucket')}: found name {self.bucket!r}, expected 1 to 100 of the "
                "characters A-Z a-z 0-9 _ - . %"
            )
        self._check_users()

    def _check_users(self) -> None:
        named = self.named("users")
        if not self.users:
            raise ConfigError(f"{named}: found none, expected at least one name and password")
        for user in self.users:
            if not user or user.startswith("@"):
                raise ConfigError(
                    f"{named}: found {user!r}, expected a name that does not begin with @: those "
                    "are the cluster's own"
                )

    def _check_bucket_type(self) -> None:
        needs_disk = {
            "data_folder": self.data_folder is not None,
            "history_retention_bytes": self.history_retention_bytes,
        }
        found = [name for name, is_set in needs_disk.items() if is_set]
        if self.bucket_type is BucketType.EPHEMERAL and found:
            told = " and ".join(f"{name}{self.option_words(name)}" for name in found)
            raise ConfigError(
                f"{self.named('bucket_type')}: found ephemeral with {told}, expected neither: such "
                "a bucket has no disk"
            )

    def tls_context(self) -> ssl.SSLContext | None:
        """Read the certificates; None without TLS.

        Raises:
            SecretError: a file cannot be read, or does not hold what it should.
        """
        try:
            return None if self.tls is None else self.tls.server_context()
        except SecretError as error:
            raise SecretError(f"{self.named('tls')}: {error}") from None

    @property
    def purge_age_seconds(self) -> float:
        if self.metadata_purge_age_seconds is None:
            return self.bucket_type.metadata_purge_age_seconds
        return self.metadata_purge_age_seconds

    @property
    def checkpoint_bytes(self) -> int:
        """Size at which an open checkpoint is full, whatever its number of items.

        Recovery of memory cannot remove an open checkpoint; larger ones would leave it nothing to
        free (kv_engine ``kv_bucket.cc``, autoConfigCheckpointMaxSize).
        """
        return max(1, self.checkpoint_quota_bytes // self.vbuckets // _CHECKPOINTS_PER_VBUCKET)

    @property
    def version(self) -> str:
        return "{}.{}.0-0000".format(*self.release)

    @property
    def makes_up_metadata(self) -> bool:
        """True if keys that are read from disk without values come with invented metadata.

        Couchbase servers of 7.6 to 8.0 do that; an ephemeral bucket has no disk.
        """
        is_faulty = self.rules == "server" and self.release >= MAKES_UP_METADATA
        return is_faulty and self.bucket_type is BucketType.COUCHBASE

    @property
    def tells_high_seqnos(self) -> bool:
        """True if GET_ALL_VB_SEQNOS counts prepares and aborts for clients with Collections.

        Couchbase servers do that from 7.1 on.
        """
        return self.rules == "server" and self.release >= _TELLS_HIGH_SEQNOS

    def is_administrator(self, _: str | None) -> bool:
        """Return whether a user may change the cluster, and take over vbuckets."""
        return False

    def may_open_dcp(self, _: str | None) -> bool:
        return True

    @property
    def first_ports(self) -> tuple[int, int, int | None, int | None]:
        """The first node's ports, in the order of `NodePorts`; 0: each node takes a free one."""

        def first(chosen: int | None, usual: int) -> int:
            # Of several clusters on a machine one has the usual ports.
            if chosen is None:
                return usual if self.port == PLAIN_PORT else 0
            return chosen

        http = first(self.http_port, HTTP_PORT)
        if self.tls is None:
            return self.port, http, None, None
        return self.port, http, first(self.tls_port, TLS_PORT), first(self.https_port, HTTPS_PORT)

    def _check_ports(self) -> None:
        if self.tls is None and (self.tls_port, self.https_port) != (None, None):
            raise ConfigError(
                f"{self.named('tls_port', 'https_port')}: found some, expected none without a "
                f"certificate{self.option_words('tls.cert_file')}"
            )
        if self.tls is not None and not self.tls.cert_file:
            raise ConfigError(
                f"{self.named('tls.cert_file')}: found no certificate, expected the nodes' own"
            )
        names = ("port", "http_port", "tls_port", "https_port")
        chosen = [
            (first + node, name)
            for name, first in zip(names, self.first_ports, strict=True)
            if first
            for node in range(self.nodes)
        ]
        for port, name in chosen:
            if port > U16_MAX:
                raise ConfigError(f"{self.named(name)}: found {port}, expected 0 to {U16_MAX}")
        for port, _ in chosen:
            shared = [other for found, other in chosen if found == port]
            if len(shared) > 1:
                raise ConfigError(
                    f"{self.named(*shared)}: found {port} twice, expected each port once"
                )
