"""The settings of a client connection and a consumer, checked when they are made.

They hold bytes, seconds and fractions, and no secret (credentials travel separately, in
``dcp.protocol.credentials``). The defaults suit one connection of a Spark task.
"""

from dataclasses import MISSING, dataclass
from typing import Final

from dcp.errors import ConfigError
from dcp.protocol.flow_strategy import group_tag_of
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.window_policies import FlowSettings
from dcp.seeds import AUTO_NETWORK, DEFAULT_BUCKET, DEFAULT_SEED
from dcp.setting_keys import Section, key, key_of
from dcp.tls_settings import TlsSettings
from dcp.wire.vocabulary import HEADER_BYTES, MAX_FRAME_BYTES

MIB: Final = 1024 * 1024
READ_BUFFER_BYTES: Final = 2 * MIB


@dataclass(frozen=True, kw_only=True)
class ReachSettings(LivenessSettings):
    """The way of a client to a node; the section ``source`` of a lake has the same settings."""

    connect_timeout_seconds: float = key(
        10.0, "How long one connection attempt may take.", unit="seconds", least=0.05, most=600
    )
    receiver_group_tag: str = key(
        "",
        "If the seeds are a relay's: the tag of the receiver's group, a signed number of 64 bits. "
        "Empty: no group. Other nodes refuse it.",
    )


@dataclass(frozen=True, kw_only=True)
class AccessSettings(Section):
    """The bucket and the user of a client; a lake and commands have these settings, too."""

    seeds: tuple[str, ...] = key((DEFAULT_SEED,), "Nodes of the cluster.")
    bucket: str = key(DEFAULT_BUCKET, "The bucket.")
    username: str = key("Administrator", "Who signs in.")
    password_env: str = key(
        "DCPLAKE_PASSWORD",
        "Name of the environment variable that holds the password.",
        may_be_secret=True,
    )
    password_file: str = key(
        "",
        "File that holds the password (its first line); preferred when set.",
        may_be_secret=True,
        is_path=True,
    )


@dataclass(frozen=True, slots=True)
class ConnectionSettings(ReachSettings, FlowSettings):
    """One connection to one node.

    Without flow control a consumer can bound its memory only by not reading the socket, at
    ``unread_limit_bytes`` of unreleased data.
    """

    bucket: str = key_of(AccessSettings, "bucket", default=MISSING)
    request_timeout_seconds: float = key(
        30.0, "How long an answer may take.", unit="seconds", above=0
    )
    read_buffer_bytes: int = key(
        READ_BUFFER_BYTES, "How much is read from the socket at once.", unit="bytes", above=0
    )
    max_frame_bytes: int = key(
        MAX_FRAME_BYTES, "The largest frame that is taken.", unit="bytes", least=HEADER_BYTES
    )
    unread_limit_bytes: int = key(
        32 * MIB, "Unreleased bytes at most without flow control.", unit="bytes", above=0
    )
    change_streams: bool = key(
        False, "Whether to ask for all versions of documents, if the bucket retains its history."
    )
    """A snapshot may then hold a key several times. A node that refuses sends snapshots as ever."""
    metadata_only: bool = key(
        False, "Whether documents come without values and xattrs: keys, seqnos and CAS come."
    )
    """The version of the server decides which flag DCP_OPEN has (``METADATA_OPEN_FLAGS``)."""
    bucket_uuid: str = key("", "A bucket with another uuid was created again, and is not read.")
    tls: TlsSettings | None = key(
        None,
        "Use TLS, with the system's certificate authorities.",
        option="--tls",
        parts={
            "ca_file": "--ca-file FILE",
            "cert_file": "--cert-file FILE",
            "key_file": "--key-file FILE",
        },
    )
    network: str = key(AUTO_NETWORK, "Which addresses of the cluster map to use.")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.window_bytes == 0 and not self.allow_no_flow_control:
            raise no_flow_control("window_bytes: found 0")
        check_group_tag(self.receiver_group_tag)

    def unreleased_limit_bytes(self, window_bytes: int) -> int:
        """Bytes of unreleased messages beyond which the reader stops reading the socket.

        With flow control a producer that keeps to the window never gets there: it may exceed the
        window by one message, and no message is larger than ``max_frame_bytes``.
        """
        if window_bytes == 0:
            return self.unread_limit_bytes
        return window_bytes + self.max_frame_bytes


def check_group_tag(tag: str) -> None:
    """Raise ConfigError if this is neither a number of 64 bits nor empty."""
    if tag and group_tag_of(tag) is None:
        raise ConfigError(
            f"receiver_group_tag: found {tag!r}, expected a decimal number from "
            "-9223372036854775808 to 9223372036854775807, or nothing"
        )


def no_flow_control(found: str) -> ConfigError:
    """Return the error of a setting that switches flow control off where that is not allowed."""
    return ConfigError(
        f"{found} (no flow control): NOOPs would wait behind unread data; "
        "set allow_no_flow_control to accept that"
    )


@dataclass(frozen=True, slots=True)
class ConsumerSettings(Section):
    """A consumer of several nodes."""

    connection: ConnectionSettings
    reads_replicas: bool = key(
        False, "Whether to ask nodes that hold vbuckets as replicas for their streams."
    )
    node_deadline_seconds: float = key(
        30.0,
        "How long a node may be out of reach, or a vbucket without a stream or without data. After "
        "that the round leaves the vbucket out and reports it.",
        unit="seconds",
        least=0.1,
        most=3600,
    )
    """Who reads without rounds is told of the vbucket by `VbucketStopped`."""
    retry_first_seconds: float = key(
        0.05,
        "How long to wait before the first retry; the time doubles, with jitter.",
        unit="seconds",
        above=0,
        is_internal=True,
    )
    retry_cap_seconds: float = key(
        2.0,
        "How long to wait before a retry at most.",
        unit="seconds",
        above=0,
        is_internal=True,
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.retry_first_seconds > self.retry_cap_seconds:
            raise ConfigError(
                f"retry_first_seconds: found {self.retry_first_seconds}, expected at most "
                "retry_cap_seconds"
            )
