"""The settings of a client connection and a consumer, checked when they are made.

Bytes, seconds and fractions; nothing here is a secret (credentials travel separately, in
``dcp.protocol.credentials``). The defaults suit one connection of a Spark task.
"""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dcp.errors import ConfigError, SecretError
from dcp.seeds import AUTO_NETWORK
from dcp.wire.vocabulary import HEADER_BYTES, MAX_FRAME_BYTES

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Encrypt the connection; certificates are always verified.

    ``ca_file`` is a PEM file of the authorities to trust; None means the system's. ``cert_file`` is
    the client's own certificate, with its chain, and ``key_file`` its key (None: in the same file),
    PEM and not encrypted. Each connection reads the files, so they may be replaced at any time.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return Python's default client context: verified certificates, checked host names.

        Raises:
            SecretError: a file cannot be read, or does not hold what it should.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise SecretError(
                f"CA file {self.ca_file!r}: {error}, expected certificates in PEM: check the file, "
                "and what names it (source.tls_ca_file, --ca-file)"
            ) from None
        if self.cert_file is not None:
            try:
                # Without a password OpenSSL would ask the terminal for that of an encrypted key.
                context.load_cert_chain(self.cert_file, self.key_file, password="")
            except OSError as error:
                raise SecretError(
                    f"client certificate {self.cert_file!r} and its key: {error}, expected both in "
                    "PEM, not encrypted: check the files, and what names them "
                    "(source.tls_cert_file, source.tls_key_file)"
                ) from None
        return context


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """One connection to one node.

    ``window_bytes`` is the flow-control window: the producer stops when so many bytes are not
    acknowledged. 0 switches flow control off, which must be allowed by
    ``allow_no_flow_control``: a consumer can then bound its memory only by not reading the socket
    (at ``unread_limit_bytes`` of undelivered data), and NOOPs wait unanswered behind the data, so
    that an application busy for longer than the server's idle timeout loses its connection.

    ``stream_window_bytes``: each stream gets a window of its own beside that, 0 for none. Data
    servers refuse it (only the DCP document has it): then the connection's window holds alone.

    A node that is silent for twice ``noop_interval_seconds`` plus ``silence_grace_seconds`` counts
    as dead (DCP's rule for consumers; NOOPs are life).

    ``receiver_group_tag``: the group of a relay's receivers that the consumer belongs to, None for
    none; any other node refuses it, and the connection with it.

    ``change_streams`` asks for all versions of a document, where a bucket retains its history: a
    snapshot may then hold a key several times. A node that refuses sends snapshots as ever.

    ``bucket_uuid``: a bucket of that name with another one was made anew, and is not read.

    ``metadata_only`` opens DCP without values and xattrs, by the flag that the server answers
    rightly: keys, seqnos and CAS come.

    More than 15 attributes: one is one setting.
    """

    bucket: str
    window_bytes: int = 10 * MIB
    stream_window_bytes: int = 0
    ack_fraction: float = 0.2
    ack_seconds: float = 5.0
    noop_interval_seconds: float = 20.0
    silence_grace_seconds: float = 5.0
    connect_timeout_seconds: float = 10.0
    bootstrap_timeout_seconds: float = 20.0
    request_timeout_seconds: float = 30.0
    read_buffer_bytes: int = 2 * MIB
    max_frame_bytes: int = MAX_FRAME_BYTES
    allow_no_flow_control: bool = False
    unread_limit_bytes: int = 32 * MIB
    change_streams: bool = False
    metadata_only: bool = False
    bucket_uuid: str = ""
    receiver_group_tag: int | None = None
    tls: TlsSettings | None = None
    network: str = AUTO_NETWORK

    def __post_init__(self) -> None:
        """Reject values that cannot work."""
        if not self.bucket:
            raise ConfigError("bucket: found an empty name")
        _positive(self, _POSITIVE)
        for name in ("window_bytes", "stream_window_bytes"):
            if type(getattr(self, name)) is not int or not 0 <= getattr(self, name) < 2**32:
                raise _wrong(self, name, "0 to 4294967295 bytes")
        if self.window_bytes == 0 and not self.allow_no_flow_control:
            raise ConfigError(
                "window_bytes: found 0 (no flow control): NOOPs would wait behind unread data; "
                "set allow_no_flow_control to accept that"
            )
        tag = self.receiver_group_tag
        if tag is not None and (type(tag) is not int or not -(2**63) <= tag < 2**63):
            raise _wrong(self, "receiver_group_tag", "a number of 64 bits with a sign, or None")
        if not 0 < self.ack_fraction < 1:
            raise _wrong(self, "ack_fraction", "a fraction between 0 and 1")
        if self.max_frame_bytes < HEADER_BYTES:
            raise _wrong(self, "max_frame_bytes", f"at least {HEADER_BYTES}")

    def held_limit_bytes(self, window_bytes: int) -> int:
        """Bytes of unreleased messages beyond which the reader stops reading the socket.

        With flow control a producer that keeps to the window never gets there: it may exceed the
        window by one message, and no message is larger than ``max_frame_bytes``.
        """
        if window_bytes == 0:
            return self.unread_limit_bytes
        return window_bytes + self.max_frame_bytes


_POSITIVE: Final = (
    "ack_seconds",
    "noop_interval_seconds",
    "silence_grace_seconds",
    "connect_timeout_seconds",
    "bootstrap_timeout_seconds",
    "request_timeout_seconds",
    "read_buffer_bytes",
    "unread_limit_bytes",
)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """A consumer of several nodes.

    ``node_deadline_seconds``: a vbucket that made no progress for so long, whatever was tried, is
    reported as stopped. Retries wait ``retry_first_seconds``, doubling up to
    ``retry_cap_seconds``, with jitter. ``reads_replicas``: streams are asked of nodes that hold
    their vbuckets as replicas.
    """

    connection: ConnectionSettings
    node_deadline_seconds: float = 60.0
    retry_first_seconds: float = 0.05
    retry_cap_seconds: float = 2.0
    reads_replicas: bool = False

    def __post_init__(self) -> None:
        """Reject values that cannot work."""
        _positive(self, ["node_deadline_seconds", "retry_first_seconds", "retry_cap_seconds"])
        if self.retry_first_seconds > self.retry_cap_seconds:
            raise _wrong(self, "retry_first_seconds", "at most retry_cap_seconds")


def _positive(settings: object, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise _wrong(settings, name, "a number above 0")


def _wrong(settings: object, name: str, expected: str) -> ConfigError:
    return ConfigError(f"{name}: found {getattr(settings, name)!r}, expected {expected}")
