"""Writes documents to a cluster's bucket from any thread."""

from collections.abc import Callable
from time import sleep
from typing import Final

from dcp.producer.producer_bucket import ProducerBucket
from dcp.producer.writes.document_writer import DocumentWriter
from dcp.server.model.versions import Version
from dcp.server.node.loop_thread import LoopThread

_HAND_OVER_SECONDS: Final = 10.0
CollectionName = int | str
"""A collection by its id, or by its path ``scope.collection``."""


class ClusterDocuments:
    """The documents of one bucket. Any thread may call it."""

    def __init__(self, bucket: ProducerBucket, loop: LoopThread) -> None:
        self._bucket, self._loop = bucket, loop

    def run(
        self,
        key: bytes,
        collection: CollectionName,
        command: Callable[[DocumentWriter, float, int], Version],
    ) -> Version:
        """Run a KV command on the store of ``key``, with the time and the collection's id."""
        bucket = self._bucket
        with bucket.lock:
            self._wait_for_hand_over(bucket.table.of_key(key).id)
            number = self.collection_id(collection)
            now = bucket.now()
            written = bucket.write(key, lambda documents: command(documents, now, number))
        if not bucket.writes.is_in_batch:
            sleep(0)  # gives the nodes a chance to get the lock
        return written

    def _wait_for_hand_over(self, vbucket: int) -> None:
        """Wait while a rebalance hands over the vbucket, which then takes no writes."""
        # Waiting would release the lock inside a batch, or block the loop that hands over.
        if self._bucket.writes.is_in_batch or self._loop.is_inside:
            return
        self._bucket.table.copies_moved.wait_for(
            lambda: not self._bucket.vbuckets[vbucket].is_handed_over, _HAND_OVER_SECONDS
        )

    def collection_id(self, collection: CollectionName) -> int:
        """Return a collection's id; a path names the current one."""
        if isinstance(collection, int):
            return collection
        return self._bucket.manifest.at(collection).id
