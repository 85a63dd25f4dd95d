"""Which vbuckets of a bucket have sync writes under way; it lets them go on. Under the lock."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dcp.producer.model.versions import Version
from dcp.producer.vbucket.documents import DocumentError
from dcp.producer.vbucket.replication_chain import Chain, Copy, is_possible
from dcp.producer.vbucket.sync_writes import Answer, Told
from dcp.wire.vocabulary import Status

if TYPE_CHECKING:
    from dcp.producer.bucket.bucket import Bucket


class SyncWriteBoard:
    """``on_pending`` is called when ``check`` is wanted from now on, until nothing is pending."""

    def __init__(self, bucket: "Bucket") -> None:
        self._bucket = bucket
        self._pending: set[int] = set()
        self.on_pending: Callable[[], None] = lambda: None
        for vbucket in range(len(bucket.vbuckets)):
            self.watch(vbucket)

    @property
    def has_pending(self) -> bool:
        """Whether any vbucket has a sync write under way."""
        return bool(self._pending)

    def require_possible(self, vbucket: int) -> None:
        """Raise DocumentError DURABILITY_IMPOSSIBLE where too few copies of a vbucket exist."""
        chain = chain_of(self._bucket, vbucket)
        if not is_possible(chain):
            found = sum(copy is not None for copy in chain)
            raise DocumentError(
                Status.DURABILITY_IMPOSSIBLE,
                f"vbucket {vbucket}: found {found} of {len(chain)} copies, too few for a majority",
            )

    def track(self, prepare: Version, deadline: float, answer: Answer) -> None:
        """Take a sync write whose prepare was appended; it may end at once."""
        self._bucket.vbuckets[prepare.vbucket].sync_writes.track(prepare, deadline, answer)
        self._go_on(prepare.vbucket)
        self.watch(prepare.vbucket)

    def watch(self, vbucket: int) -> None:
        """Look after a vbucket that may have sync writes under way."""
        if self._bucket.vbuckets[vbucket].sync_writes.is_pending:
            self._pending.add(vbucket)
            self.on_pending()

    def acknowledged(self, vbucket: int) -> None:
        """Let a vbucket's sync writes go on, of which a copy acknowledged some, if any is left."""
        if vbucket in self._pending:
            self._go_on(vbucket)

    def check(self) -> None:
        """Let everything go on that can now.

        Raises:
            OSError: what a vbucket did cannot be written; that was done, and the others as well.
        """
        failed: list[OSError] = []
        for vbucket in sorted(self._pending):
            try:
                self._go_on(vbucket)
            except OSError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _go_on(self, vbucket: int) -> None:
        bucket = self._bucket
        state = bucket.vbuckets[vbucket]
        before = state.data.high_seqno
        told: list[Told] = list(state.sync_writes.step(chain_of(bucket, vbucket), bucket.now()))
        try:
            if state.data.high_seqno != before:
                bucket.wrote(vbucket)
        finally:  # who waits must hear of what was done
            if not state.sync_writes.is_pending:
                self._pending.discard(vbucket)
            for answer, status in told:
                answer(status)


def chain_of(bucket: "Bucket", vbucket: int) -> Chain:
    """Return the copies of a vbucket as they are now."""
    state = bucket.vbuckets[vbucket]
    active = Copy(state.data.high_seqno, state.data.disk.persisted_seqno)
    return (active, *bucket.replicas.behind(vbucket))
