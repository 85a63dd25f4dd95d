"""The kinds of buckets that the producer serves.

An ephemeral bucket has no disk. What takes its place is a log in memory, from which streams read
backfills as from a disk; a crash loses it all (kv_engine ``engines/ep/src/ephemeral_vb.h``).
"""

from enum import Enum
from typing import Final


class BucketType(Enum):
    """The bucket type, by the name that people use."""

    COUCHBASE = "couchbase"
    EPHEMERAL = "ephemeral"

    @property
    def client_name(self) -> str:
        """The name that clients are told (ns_server ``ns_bucket.erl``, external_bucket_type)."""
        return "membase" if self is BucketType.COUCHBASE else self.value

    @property
    def storage_backend(self) -> str | None:
        """The storage backend that clients are told; None where there is no disk."""
        return "couchstore" if self is BucketType.COUCHBASE else None

    @property
    def scans_by_key(self) -> bool:
        """True if backfills may be in key order (``dcp/producer.cc``, isByIdScanSupported)."""
        return self is BucketType.COUCHBASE

    @property
    def metadata_purge_age_seconds(self) -> float:
        """The default purge age of tombstones (kv_engine ``configuration.json``).

        Its names there: ``persistent_metadata_purge_age``, ``ephemeral_metadata_purge_age``.
        """
        return _PURGE_AGE_SECONDS[self]


_PURGE_AGE_SECONDS: Final = {
    BucketType.COUCHBASE: 3 * 24 * 3600.0,
    BucketType.EPHEMERAL: 60.0,
}
