"""The documents of one vbucket, with its collections and its clock.

Keys have no collection prefix; the collection is a separate argument, 0 for the default one.
"""

from collections.abc import Sequence

from dcp.errors import FrameError
from dcp.server.model.hybrid_clock import HybridClock
from dcp.server.model.manifest import Step
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.versions import Version
from dcp.server.vbucket.vbucket_collections import VbucketCollections
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire.leb128 import require_key_length
from dcp.wire.vocabulary import Status


class DocumentStore:
    """Reads over one vbucket's history; ``now`` is in seconds since 1970."""

    def __init__(self, data: VbucketData, clock: HybridClock | None = None) -> None:
        self.data = data
        self.clock = clock or HybridClock()
        self.collections = VbucketCollections()
        self.begin_at_base()

    def get(self, key: bytes, now: float, *, collection: int = 0) -> Version:
        """Return the document of ``key``; raise RefusedError KEY_ENOENT if there is none.

        It raises UNKNOWN_COLLECTION if the collection does not exist.
        """
        return self.with_value(key, self.existing(collection, key, now))

    def with_value(self, key: bytes, existing: Version | None) -> Version:
        """Return a version that ``existing`` found, with its value; KEY_ENOENT if it is None."""
        if existing is None:
            raise RefusedError(Status.KEY_ENOENT, f"get {key!r}: no such document")
        return self.data.newest.with_value(existing)

    def rewind(self) -> None:
        """Rebuild the collections after the history was cut.

        The clock is not reset: CAS values must keep growing.
        """
        self.collections.cut(self.data.high_seqno, list(self.data.newest.versions))
        self.begin_at_base()

    # --- collections

    def emit(self, steps: Sequence[Step]) -> None:
        """Append system events; each one sets the manifest that belongs to it.

        An event that drops or restarts a collection ends all documents of that collection.
        """
        for event, then in steps:
            seqno = self.data.high_seqno + 1
            version = Version.of_event(self.data.vbucket, event, seqno=seqno)
            self.data.append(version)
            self.collections.note(version)
            self.collections.stand_at(then, seqno)

    def begin_at_base(self) -> None:
        # Seqnos up to the base may have been documents of the default collection that nobody
        # recorded.
        self.collections.raise_to(self.data.base_seqno)

    def existing(self, collection: int, key: bytes, now: float) -> Version | None:
        """Return a document that has not expired, perhaps without its value; None: there is none.

        Raises RefusedError UNKNOWN_COLLECTION if the collection does not exist.
        """
        if self.collections.find(collection) is None:
            raise RefusedError(
                Status.UNKNOWN_COLLECTION, f"{key!r}: collection {collection:#x}: found none"
            )
        version = self.data.newest.of_key(key, collection)
        if version is None or version.is_deleted or is_due(version, now):
            return None
        return version

    def append(self, version: Version) -> None:
        """Append a complete version; its seqno must be the next one."""
        self.data.append(version)
        self.collections.note(version)


def check_key(key: bytes, collection: int) -> None:
    """Raise RefusedError EINVAL if the key is empty or too long for its collection."""
    try:
        require_key_length(key, collection)
    except FrameError as error:
        raise RefusedError(Status.EINVAL, str(error)) from None


def is_due(version: Version, now: float) -> bool:
    return not version.is_deleted and version.expiry != 0 and version.expiry <= now
