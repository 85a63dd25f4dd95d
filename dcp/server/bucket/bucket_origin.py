"""The source of a bucket's documents: the seam between the producer and the relay.

A bucket of a cluster is written to by clients (``ClientOrigin``); one of a relay is filled by
another cluster (``UpstreamOrigin`` in ``dcp/relay/relay_bucket.py``). All that such a bucket
decides differently is asked of this one object, under the bucket's lock. Whether it has taken in
what it was promised the relay asks itself: ``Bucket.changes``, ``Vbucket.promised_seqno``,
``DcpConnection.ready``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dcp.server.bucket.copy_table import Copies
from dcp.server.model.manifest import Manifest
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import VbucketState


class BucketOrigin(Protocol):
    """The source of a bucket's data, which is notified of its clients' progress."""

    @property
    def opened_state(self) -> VbucketState | None:
        """The state of all vbuckets when they are opened; None: of each the one that was saved."""

    def begin(self, vbucket: Vbucket) -> None:
        """Make an opened vbucket what it is to clients."""

    def own_copies(
        self,
        vbuckets: Sequence[Vbucket],
        known_manifest: Callable[[], Manifest],
        quota_bytes: int,
    ) -> Copies | None:
        """Return the vbuckets themselves as the copies that are filled; None: the map's, beside."""

    def sent(self, vbucket: int) -> None:
        """Hear that a client's stream of a vbucket has sent something, or has nothing to send.

        Or that there is one more, or one less.
        """


class ClientOrigin:
    """Of a bucket that takes its clients' writes: its vbuckets are as they were saved."""

    opened_state = None

    def begin(self, vbucket: Vbucket) -> None:
        """Let it be to clients what it is."""

    def own_copies(self, _: Sequence[Vbucket], __: Callable[[], Manifest], ___: int) -> None:
        """Have the copies that the map names."""

    def sent(self, vbucket: int) -> None:
        """Do nothing: nobody waits for it."""
