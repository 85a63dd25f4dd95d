from enum import Enum
from typing import Final


class BucketType(Enum):
    """The bucket type, by the name that people use.

    An ephemeral bucket keeps its disk logs in memory. They serve its backfills, and a crash loses
    all of its data (kv_engine ``engines/ep/src/ephemeral_vb.h``).
    """

    COUCHBASE = "couchbase"
    EPHEMERAL = "ephemeral"

    @property
    def client_name(self) -> str:
        """Name in the cluster map (ns_server ``ns_bucket.erl``, external_bucket_type)."""
        return "membase" if self is BucketType.COUCHBASE else self.value

    @property
    def storage_backend(self) -> str | None:
        """Storage backend as clients see it; None without a disk."""
        return "couchstore" if self is BucketType.COUCHBASE else None

    @property
    def scans_by_key(self) -> bool:
        """True if backfills may be in key order (``dcp/producer.cc``, isByIdScanSupported)."""
        return self is BucketType.COUCHBASE

    @property
    def metadata_purge_age_seconds(self) -> float:
        """Default purge age of tombstones (kv_engine ``configuration.json``).

        Its names there are ``persistent_metadata_purge_age`` and ``ephemeral_metadata_purge_age``.
        """
        return _PURGE_AGE_SECONDS[self]


_PURGE_AGE_SECONDS: Final = {
    BucketType.COUCHBASE: 3 * 24 * 3600.0,
    BucketType.EPHEMERAL: 60.0,
}
