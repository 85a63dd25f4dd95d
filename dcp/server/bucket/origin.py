"""The origin of a bucket's documents: the seam to the producer and the relay.

Clients write to a producer's bucket (``ClientOrigin`` in ``dcp/producer/bucket.py``).
Another cluster fills a relay's bucket (``UpstreamOrigin`` in ``dcp/relay/bucket.py``).
"""

from typing import Protocol

from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import DcpClient
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import VbucketState


class SendHook(Protocol):
    """Changes what clients are sent; streams between nodes have no hook."""

    @property
    def most_items(self) -> int:
        """Most items that the next batch may hold."""

    def sending(
        self, data: bytes | bytearray, items: int, *, is_inside_snapshot: bool
    ) -> tuple[bytes | bytearray, bool]:
        """Return the bytes to send for a batch, and True if the connection must end after them.

        ``is_inside_snapshot``: more items of the snapshot follow this batch.
        """


class BucketOrigin(Protocol):
    """Decides how a bucket's vbuckets are filled and sent; called under the bucket's lock."""

    @property
    def send_hook(self) -> SendHook | None: ...

    @property
    def opened_state(self) -> VbucketState | None:
        """State of all vbuckets after opening; None keeps the saved state of each."""

    @property
    def replica_node(self) -> int | None:
        """The node whose replicas are the bucket's own vbuckets.

        None: replicas are separate vbuckets, placed by the cluster map.
        """

    def begin(self, vbucket: Vbucket) -> None:
        """Prepare a vbucket, or a replica, that was just opened for its clients."""

    def stream_moved(self, vbucket: int) -> None:
        """Take notice that a client's stream of ``vbucket`` sent items or ran dry, began or ended.

        Its place in the vbucket's history may be another one now.
        """

    def acknowledged(self, vbucket: int) -> None:
        """Take notice that a client has stored prepares of ``vbucket``."""

    def hand_over(self, stream: ActiveStream, client: DcpClient) -> bool:
        """Make the vbucket of a takeover stream dead, as its client becomes the active one.

        False: that is impossible; the stream then ends.
        """
