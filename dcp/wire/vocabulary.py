"""The numbers of the protocol, by name: magics, opcodes, statuses, datatypes, flags.

Source: kv_engine ``include/mcbp/protocol/{magic,opcode,status,datatype,feature}.h`` and
``docs/dcp/documentation``.
"""

from enum import IntEnum, IntFlag
from typing import Final

HEADER_BYTES: Final = 24
MAX_FRAME_BYTES: Final = 30 * 1024 * 1024
"""kv_engine's ``max_packet_size``; a document (20 MiB) with its system xattrs (1 MiB) fits."""
MAX_UNAUTHENTICATED_FRAME_BYTES: Final = 16 * 1024
MAX_KEY_BYTES: Final = 250
"""In the default collection, without the prefix (kv_engine ``limits.h``)."""
MAX_KEY_BYTES_IN_COLLECTIONS: Final = 246
"""In other collections, for prefixes of any length (``dockey_view.h``,
MaxCollectionsLogicalKeyLen)."""
MAX_CONNECTION_NAME_BYTES: Final = 200


class Magic(IntEnum):
    """The first byte of a frame: sender and framing."""

    ALT_REQUEST = 0x08
    ALT_RESPONSE = 0x18
    REQUEST = 0x80
    RESPONSE = 0x81
    SERVER_REQUEST = 0x82
    SERVER_RESPONSE = 0x83

    def __init__(self, number: int) -> None:
        # Attributes cost less than properties, and each frame reads them.
        self.is_response = number in (0x18, 0x81, 0x83)
        """True if bytes 6..7 hold a status rather than a vbucket id."""
        self.is_alternative = number in (0x08, 0x18)
        """True if byte 2 is the framing-extras length and byte 3 the key length."""


class Opcode(IntEnum):
    """Client commands and DCP messages (magics 0x80, 0x81, 0x08, 0x18)."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    QUIT = 0x07
    NOOP = 0x0A
    VERSION = 0x0B
    STAT = 0x10
    TOUCH = 0x1C
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    IOCTL_GET = 0x23
    IOCTL_SET = 0x24
    GET_ALL_VB_SEQNOS = 0x48
    DCP_OPEN = 0x50
    DCP_ADD_STREAM = 0x51
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQ = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_FLUSH = 0x5A
    DCP_SET_VBUCKET_STATE = 0x5B
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACK = 0x5D
    DCP_CONTROL = 0x5E
    DCP_SYSTEM_EVENT = 0x5F
    DCP_PREPARE = 0x60
    DCP_SEQNO_ACKNOWLEDGED = 0x61
    DCP_COMMIT = 0x62
    DCP_ABORT = 0x63
    DCP_SEQNO_ADVANCED = 0x64
    DCP_OSO_SNAPSHOT = 0x65
    DCP_CACHE_TRANSFER = 0x66
    DCP_CACHE_TRANSFER_END = 0x67
    LIST_BUCKETS = 0x87
    SELECT_BUCKET = 0x89
    OBSERVE_SEQNO = 0x91
    GET_FAILOVER_LOG = 0x96
    GET_CLUSTER_CONFIG = 0xB5
    SEQNO_PERSISTENCE = 0xB7
    GET_COLLECTIONS_MANIFEST = 0xBA
    GET_COLLECTION_ID = 0xBB
    GET_SCOPE_ID = 0xBC
    GET_ERROR_MAP = 0xFE


def opcode_name(opcode: int) -> str:
    try:
        return Opcode(opcode).name
    except ValueError:
        return f"opcode {opcode:#04x}"


class ServerOpcode(IntEnum):
    """Commands that a server sends to a client (magics 0x82, 0x83)."""

    CLUSTERMAP_CHANGE_NOTIFICATION = 0x01


class Status(IntEnum):
    """Unknown statuses stay plain ints: servers add new ones."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    DCP_STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    EWOULD_THROTTLE = 0x0C
    ECONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_VALUE_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    ENCRYPTION_KEY_NOT_AVAILABLE = 0x26
    CHECKSUM_MISMATCH = 0x27
    RATE_LIMITED_NETWORK_INGRESS = 0x30
    RATE_LIMITED_NETWORK_EGRESS = 0x31
    RATE_LIMITED_MAX_CONNECTIONS = 0x32
    RATE_LIMITED_MAX_COMMANDS = 0x33
    SCOPE_SIZE_LIMIT_EXCEEDED = 0x34
    BUCKET_SIZE_LIMIT_EXCEEDED = 0x35
    BUCKET_RESIDENT_RATIO_TOO_LOW = 0x36
    BUCKET_DATA_SIZE_TOO_BIG = 0x37
    BUCKET_DISK_SPACE_TOO_LOW = 0x38
    BUCKET_PAUSED = 0x50
    CANCELLED = 0x51
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86
    XATTR_EINVAL = 0x87
    UNKNOWN_COLLECTION = 0x88
    CANNOT_APPLY_COLLECTIONS_MANIFEST = 0x8A
    UNKNOWN_SCOPE = 0x8C
    DCP_STREAM_ID_INVALID = 0x8D
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    SYNC_WRITE_RE_COMMIT_IN_PROGRESS = 0xA4
    VB_UUID_NOT_EQUAL = 0xA8


class Datatype(IntFlag):
    """The encoding of a value's bytes; several bits may be set."""

    RAW = 0x00
    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


ALL_DATATYPE_BITS: Final = int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR)


class HelloFeature(IntEnum):
    DATATYPE = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    TCP_DELAY = 0x05
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTERMAP_CHANGE_NOTIFICATION = 0x0D
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    SNAPPY_EVERYWHERE = 0x13
    PRESERVE_TTL = 0x14
    VATTR = 0x15
    PITR = 0x16
    SUBDOC_CREATE_AS_DELETED = 0x17
    SUBDOC_DOCUMENT_MACRO_SUPPORT = 0x18
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0x19
    REPORT_UNIT_USAGE = 0x1A
    NON_BLOCKING_THROTTLING_MODE = 0x1B
    SUBDOC_REPLICA_READ = 0x1C
    GET_CLUSTER_CONFIG_WITH_GIVEN_VERSION = 0x1D
    DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP = 0x1E
    CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF = 0x1F
    DCP_SKIP_DELETES_IN_INITIAL_BACKFILL = 0x26


class OpenFlag(IntFlag):
    """Flags of DCP_OPEN."""

    PRODUCER = 0x01
    INCLUDE_XATTRS = 0x04
    NO_VALUE = 0x08
    INCLUDE_DELETE_TIMES = 0x20
    NO_VALUE_WITH_UNDERLYING_DATATYPE = 0x40
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_INITIAL_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """Flags of DCP_STREAM_REQ."""

    TAKEOVER = 0x01
    DISK_ONLY = 0x02
    TO_LATEST = 0x04
    NO_VALUE = 0x08
    ACTIVE_VB_ONLY = 0x10
    STRICT_VBUUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGED_TOMBSTONES = 0x80
    CACHE_TRANSFER = 0x100


class SnapshotFlag(IntFlag):
    """Flags of DCP_SNAPSHOT_MARKER."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACK = 0x08
    HISTORY = 0x10
    MAY_CONTAIN_DUPLICATES = 0x20


REPEATING: Final = SnapshotFlag.HISTORY | SnapshotFlag.MAY_CONTAIN_DUPLICATES
"""With any of these a snapshot may hold a key several times."""


class EndReason(IntEnum):
    """Reasons of DCP_STREAM_END. Unknown ones stay plain ints."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    SLOW = 4
    BACKFILL_FAILED = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class VbucketState(IntEnum):
    """States of a vbucket (SET_VBUCKET_STATE, GET_ALL_VB_SEQNOS). ALIVE means all but DEAD."""

    ALIVE = 0
    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


class SystemEventKind(IntEnum):
    """Events of DCP_SYSTEM_EVENT. Unknown ones stay plain ints."""

    BEGIN_COLLECTION = 0
    END_COLLECTION = 1
    FLUSH_COLLECTION = 2
    CREATE_SCOPE = 3
    DROP_SCOPE = 4
    MODIFY_COLLECTION = 5


class OsoFlag(IntEnum):
    START = 1
    END = 2
