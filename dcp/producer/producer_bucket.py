"""The bucket of a cluster that clients write to."""

from typing import cast

from dcp.producer.faults import Faults
from dcp.server.bucket.bucket import Bucket
from dcp.server.commands.session import Session
from dcp.server.model.cluster_settings import ClusterSettings


class ProducerBucket(Bucket):
    """A bucket with all that writes and tests need."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Create a bucket, or open the one in the settings' data folder."""
        self.faults = Faults()
        super().__init__(settings, send_hook=self.faults)


def bucket_of(session: Session) -> ProducerBucket:
    """Return the bucket of a producer's session."""
    return cast("ProducerBucket", session.bucket)
