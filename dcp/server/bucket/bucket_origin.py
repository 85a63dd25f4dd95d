"""The source of a bucket's documents: the seam between the producer and the relay.

Clients write to a producer's bucket (``ClientOrigin``). Another cluster fills a relay's bucket
(``UpstreamOrigin`` in ``dcp/relay/relay_bucket.py``).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dcp.server.bucket.copy_table import Copies
from dcp.server.model.manifest import Manifest
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import VbucketState


class BucketOrigin(Protocol):
    """Decides how a bucket's vbuckets are filled; called under the bucket's lock."""

    @property
    def opened_state(self) -> VbucketState | None:
        """State of all vbuckets after opening; None keeps the saved state of each."""

    def begin(self, vbucket: Vbucket) -> None:
        """Prepare a vbucket that was just opened for its clients."""

    def own_copies(
        self,
        vbuckets: Sequence[Vbucket],
        known_manifest: Callable[[], Manifest],
        quota_bytes: int,
    ) -> Copies | None:
        """Return a table in which the vbuckets themselves are the filled copies.

        None: copies are separate vbuckets, placed by the cluster map.
        """

    def stream_moved(self, vbucket: int) -> None:
        """Take notice that a client's stream of ``vbucket`` sent items or ran dry, began or ended.

        Its place in the vbucket's history may be another one now.
        """


class ClientOrigin:
    """Origin of a bucket that clients write to."""

    opened_state = None

    def begin(self, vbucket: Vbucket) -> None:
        """Do nothing: clients see the vbucket as it was saved."""

    def own_copies(self, _: Sequence[Vbucket], __: Callable[[], Manifest], ___: int) -> None:
        """Return None."""

    def stream_moved(self, vbucket: int) -> None:
        """Do nothing."""
