"""The settings of a producer cluster: sizes, names, users, and the limits of its connections."""

import math
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Final, get_args

from dcp.errors import ConfigError
from dcp.protocol.negotiation import MAKES_UP_METADATA, Release
from dcp.server.model.bucket_type import BucketType
from dcp.server.model.resume_rules import Rules
from dcp.types import U16_MAX

OUTBOX_BYTES: Final = 64 * 1024
"""Answers that may wait for a client which does not read; then its requests are not read either."""
MAX_VBUCKETS: Final = 1024
MAX_NODES: Final = 128
_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9_.%-]{1,100}")
"""As Couchbase has it: LIST_BUCKETS separates names by spaces, URLs by slashes."""
MAX_REPLICAS: Final = 3
_TELLS_HIGH_SEQNOS: Final[Release] = (7, 1)
"""The first release whose GET_ALL_VB_SEQNOS counts prepares and aborts, for clients with
Collections (kv_engine ``ep_engine.cc``, commit 983266111, of branches 7.1 and newer)."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The nodes' certificate (a chain is fine) and its private key, as PEM files.

    Clients may show a certificate of the authorities in ``client_ca_file``, whose common name is
    their user; they must where one is required. (ns_server's ``clientCertAuth``: ``enable`` and
    ``mandatory``, with the path ``subject.cn``.) Empty: they are asked for none.
    """

    certificate_file: str
    key_file: str
    client_ca_file: str = ""
    requires_client_certificate: bool = False

    def context(self) -> ssl.SSLContext:
        """Return a server's context: TLS 1.2 or newer.

        Raises:
            ConfigError: a file cannot be read, or the two do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(self.certificate_file, self.key_file)
            if self.client_ca_file:
                context.load_verify_locations(self.client_ca_file)
                must = self.requires_client_certificate
                context.verify_mode = ssl.CERT_REQUIRED if must else ssl.CERT_OPTIONAL
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"producer tls certificate {self.certificate_file!r}, key {self.key_file!r}: "
                f"{error.strerror or error}"
            ) from None
        return context


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A cluster of ``nodes`` that share the vbuckets of one bucket.

    ``ports`` gives one KV port per node, 0 for any free one; ``http_ports`` the same for the HTTP
    endpoints that every node has. With ``tls`` each node listens on a ``tls_ports`` and an
    ``https_ports`` too. ``checkpoint_items``: how many items a checkpoint may hold (at least one);
    a stream that starts before what memory has reads a disk snapshot first.
    ``checkpoint_quota_bytes``: what all checkpoints together may take; beyond it slow streams go
    back to the disk.
    ``keeps_values``: documents are in memory with their values; else values that are on disk are
    read from there when they are asked for, each time (a relay's; ``record_branches`` keeps all).
    ``bucket_uuid`` names the bucket for good; empty: any. ``cluster_uuid`` is told with the map, as
    servers do from 7.6 on; empty: not.
    ``external_host`` is told with the map as each node's external address, with the same ports;
    empty: none.
    ``seed`` fixes vbucket uuids and the bucket's uuid; None makes them random.
    ``expiry_pager_seconds`` 0 turns the background pager off (``expire_due`` remains).
    ``idle_timeout_seconds``, ``authentication_seconds``: how long a client may be silent that takes
    NOOPs, and be there without logging in; 0 for ever. Others may be silent for ever, as in
    servers; dead peers of those are for TCP's keep-alive to find. ``last_words_seconds``: how long
    a client may take to read what it was sent when its connection ends, also when the cluster
    stops; the time is ours.
    ``large_frame_seconds``: how long it may bring little of a large frame while others wait for
    room, divided by how many they are and one (``large_frames.py``).
    ``stuck_name_regex``: DCP connections whose whole name, as statistics tell it
    (``eq_dcpq:<name>``), it matches are closed when their window is full and nothing was
    acknowledged for ``stuck_timeout_seconds``; empty: none, as in servers. (kv_engine's
    ``dcp_disconnect_when_stuck_name_regex`` and ``…_timeout_seconds``.)
    ``rebalance_timeout_seconds``: how long a rebalance may take that is ordered over the protocol.
    ``max_connections`` of clients to a node, whatever they speak; it closes more at once, unheard.
    ``max_streams`` that clients may have at a node (``stream_quota.py``).
    ``record_seqnos`` keeps every sent seqno in the counters, 8 bytes each (for tests).
    ``record_branches`` keeps what failovers and crashes lose, so that ``state_at`` can tell of
    every branch (for tests; without it ``state_at`` knows the current branch only).
    ``replicas``: so many copies of each vbucket are on other nodes, fed over the wire; those that
    there is no node for are absent until one comes. With 0 no node can be failed over.
    ``unpersisted_seqnos``: so many of the newest seqnos are not on disk yet.
    ``data_folder`` keeps the bucket's data over a restart; it belongs to one process at a time, and
    is made for one bucket and number of vbuckets; the number of nodes is the one that the cluster
    had at last. Writes go there within ``flush_seconds``, or earlier when much is pending. None:
    the disk is memory; what a client sent together is on it before the last answer leaves.
    ``persistence_wait_seconds``: so long a client waits that asks until a seqno is on disk.
    ``bucket_type``: an ephemeral bucket has no disk, and a crash loses all of it. Every
    ``stale_removal_seconds`` it is looked whether versions and tombstones are to be removed that
    nobody needs; tombstones when they are ``metadata_purge_age_seconds`` old (None: as old as
    Couchbase has it for that type, 3 days or 60 seconds; infinity: never).
    ``history_retention_bytes``: how much of what was replaced the disk keeps, shared by the
    vbuckets: clients may ask for all versions of documents, as of a Magma bucket; 0: none.
    ``rules``: who is followed where the documents and real servers differ, see ``resume_rules.py``.
    ``release``: the version that the nodes tell, by which clients choose how to open DCP; one
    before 6.5 does not know NO_VALUE_WITH_UNDERLYING_DATATYPE.
    ``prepare_extra_bytes``: what flow control charges for a prepare beyond its length: kv_engine 2,
    which a consumer loses from its window each time that acknowledges what it got.
    ``users_without_streams`` may log in and must not open DCP connections. ``administrators`` may
    order about the cluster, and take vbuckets over; None: the first of ``users``. ``clock``
    returns seconds since 1970.

    More than 15 attributes: one is one setting.
    """

    nodes: int = 1
    vbuckets: int = 64
    bucket: str = "default"
    bucket_type: BucketType = BucketType.COUCHBASE
    users: Mapping[str, str] = field(
        default_factory=lambda: {"Administrator": "password"}, repr=False
    )
    users_without_streams: frozenset[str] = frozenset()
    administrators: frozenset[str] | None = None
    bucket_uuid: str = ""
    cluster_uuid: str = ""
    external_host: str = ""
    seed: int | None = None
    checkpoint_items: int = 10_000
    checkpoint_quota_bytes: int = 256 * 1024 * 1024
    keeps_values: bool = True
    host: str = "127.0.0.1"
    ports: tuple[int, ...] = ()
    http_ports: tuple[int, ...] = ()
    tls: TlsFiles | None = None
    tls_ports: tuple[int, ...] = ()
    https_ports: tuple[int, ...] = ()
    expiry_pager_seconds: float = 0.0
    idle_timeout_seconds: float = 360.0
    authentication_seconds: float = 300.0
    last_words_seconds: float = 2.0
    large_frame_seconds: float = 10.0
    stuck_name_regex: str = ""
    stuck_timeout_seconds: float = 720.0
    rebalance_timeout_seconds: float = 600.0
    max_connections: int = 5_000
    max_streams: int = 256 * 1024
    record_seqnos: bool = True
    record_branches: bool = True
    replicas: int = 0
    unpersisted_seqnos: int = 0
    data_folder: Path | None = None
    flush_seconds: float = 0.1
    persistence_wait_seconds: float = 30.0
    stale_removal_seconds: float = 60.0
    metadata_purge_age_seconds: float | None = None
    history_retention_bytes: int = 0
    rules: Rules = "document"
    release: Release = (8, 0)
    prepare_extra_bytes: int = 0
    clock: Callable[[], float] = time

    def __post_init__(self) -> None:
        """Reject a cluster that cannot exist."""
        if not 1 <= self.vbuckets <= MAX_VBUCKETS:
            raise ConfigError(
                f"producer vbuckets: found {self.vbuckets}, expected 1 to {MAX_VBUCKETS}"
            )
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"producer nodes: found {self.nodes}, expected 1 to {MAX_NODES}")
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise ConfigError(
                f"producer replicas: found {self.replicas}, expected 0 to {MAX_REPLICAS}"
            )
        if self.checkpoint_quota_bytes < 1:
            raise ConfigError(
                f"producer checkpoint quota: found {self.checkpoint_quota_bytes} bytes, "
                "expected 1 or more"
            )
        if self.unpersisted_seqnos < 0:
            raise ConfigError(
                f"producer unpersisted tail: found {self.unpersisted_seqnos} seqnos, "
                "expected 0 or more"
            )
        self._check_connections()
        if not 0 < self.flush_seconds < math.inf:
            raise ConfigError(
                f"producer flush interval: found {self.flush_seconds} seconds, expected more than 0"
            )
        self._check_bucket_type()
        if self.rules not in get_args(Rules):
            expected = " or ".join(get_args(Rules))
            raise ConfigError(f"producer rules: found {self.rules!r}, expected {expected}")
        if not 0 <= self.prepare_extra_bytes <= U16_MAX:
            raise ConfigError(
                f"producer prepares: found {self.prepare_extra_bytes} bytes charged beyond their "
                f"length, expected 0 to {U16_MAX}"
            )
        self._check_ports()
        if not _BUCKET_NAME.fullmatch(self.bucket):
            raise ConfigError(
                f"producer bucket: found name {self.bucket!r}, expected 1 to 100 of the characters "
                "A-Z a-z 0-9 _ - . %"
            )
        self._check_users()

    def _check_users(self) -> None:
        if not self.users:
            raise ConfigError("producer users: found none, expected at least one name and password")
        for user in self.users:
            if not user or user.startswith("@"):
                raise ConfigError(
                    f"producer users: found {user!r}, expected a name that does not begin with @: "
                    "those are the cluster's own"
                )
        unknown = sorted((self.administrators or frozenset()) - self.users.keys())
        if unknown:
            raise ConfigError(
                f"producer administrators: found {unknown[0]!r}, expected one of "
                f"{', '.join(sorted(self.users))}"
            )

    def _check_bucket_type(self) -> None:
        if self.bucket_type not in tuple(BucketType):
            expected = " or ".join(str(each) for each in BucketType)
            raise ConfigError(
                f"producer bucket type: found {self.bucket_type!r}, expected {expected}"
            )
        if self.bucket_type is BucketType.EPHEMERAL and (
            self.data_folder is not None or self.unpersisted_seqnos
        ):
            raise ConfigError(
                "producer bucket type: found ephemeral with a data folder or an unpersisted tail, "
                "expected neither: such a bucket has no disk"
            )
        if self.history_retention_bytes < 0 or (
            self.bucket_type is BucketType.EPHEMERAL and self.history_retention_bytes
        ):
            raise ConfigError(
                f"producer history retention: found {self.history_retention_bytes} bytes for a "
                f"bucket of type {self.bucket_type.value}, expected 0 or, where there is a disk, "
                "more"
            )
        if not 0 < self.stale_removal_seconds < math.inf:
            raise ConfigError(
                f"producer stale removal: found {self.stale_removal_seconds} seconds, "
                "expected more than 0"
            )
        if not self.purge_age_seconds >= 0:
            raise ConfigError(
                f"producer metadata purge age: found {self.purge_age_seconds} seconds, "
                "expected 0 or more"
            )

    @property
    def purge_age_seconds(self) -> float:
        """The age at which a tombstone is purged automatically."""
        if self.metadata_purge_age_seconds is None:
            return self.bucket_type.metadata_purge_age_seconds
        return self.metadata_purge_age_seconds

    @property
    def version(self) -> str:
        """The nodes' version as servers write it."""
        return "{}.{}.0-0000".format(*self.release)

    @property
    def makes_up_metadata(self) -> bool:
        """True if keys that are read from disk alone come with made-up metadata.

        As from real servers of 7.6 to 8.0; an ephemeral bucket has no disk.
        """
        is_faulty = self.rules == "server" and self.release >= MAKES_UP_METADATA
        return is_faulty and self.bucket_type is BucketType.COUCHBASE

    @property
    def tells_high_seqnos(self) -> bool:
        """True if GET_ALL_VB_SEQNOS counts prepares and aborts too, for clients with Collections.

        As real servers from 7.1 on.
        """
        return self.rules == "server" and self.release >= _TELLS_HIGH_SEQNOS

    def is_administrator(self, user: str | None) -> bool:
        """Return whether a user may change the cluster for others."""
        if self.administrators is None:
            return user == next(iter(self.users))
        return user in self.administrators

    def _check_connections(self) -> None:
        if self.max_connections < 1:
            raise ConfigError(
                f"producer connections: found at most {self.max_connections}, expected 1 or more"
            )
        if self.max_streams < 1:
            raise ConfigError(
                f"producer streams: found at most {self.max_streams}, expected 1 or more"
            )
        for name, seconds in (
            ("idle timeout", self.idle_timeout_seconds),
            ("time to log in", self.authentication_seconds),
            ("time for last words", self.last_words_seconds),
            ("time for large frames", self.large_frame_seconds),
            ("time until a consumer is stuck", self.stuck_timeout_seconds),
            ("wait for persistence", self.persistence_wait_seconds),
            ("time of a rebalance", self.rebalance_timeout_seconds),
        ):
            if not 0 <= seconds < math.inf:
                raise ConfigError(f"producer {name}: found {seconds} seconds, expected 0 or more")
        try:
            re.compile(self.stuck_name_regex)
        except re.error as error:
            raise ConfigError(
                f"producer names of consumers that are closed when stuck: found "
                f"{self.stuck_name_regex!r}, expected a regular expression: {error}"
            ) from None

    def _check_ports(self) -> None:
        named = {
            "ports": self.ports,
            "http ports": self.http_ports,
            "tls ports": self.tls_ports,
            "https ports": self.https_ports,
        }
        for name, ports in named.items():
            if ports and len(ports) != self.nodes:
                raise ConfigError(
                    f"producer {name}: found {len(ports)} for {self.nodes} nodes, "
                    "expected one per node"
                )
            for port in ports:
                if not 0 <= port <= U16_MAX:
                    raise ConfigError(f"producer port: found {port}, expected 0 to {U16_MAX}")
        if self.tls is None and (self.tls_ports or self.https_ports):
            raise ConfigError("producer tls ports: found some, expected none without a certificate")
        chosen = [port for ports in named.values() for port in ports if port]
        twice = sorted({port for port in chosen if chosen.count(port) > 1})
        if twice:
            raise ConfigError(f"producer ports: found {twice[0]} twice, expected each port once")
