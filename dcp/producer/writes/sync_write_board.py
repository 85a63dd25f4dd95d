from collections.abc import Callable, Sequence

from dcp.producer.replica_progress import ReplicaProgress
from dcp.producer.writes.document_writer import DocumentWriter
from dcp.producer.writes.sync_writes import (
    Answer,
    Chain,
    NodeProgress,
    SyncWrites,
    Told,
    is_possible,
)
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.bucket.write_path import WritePath
from dcp.server.model.listeners import Listeners
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.versions import Version
from dcp.wire.vocabulary import Status, VbucketState


class SyncWriteBoard:
    """Advances the sync writes (durable writes) of all vbuckets; callers hold the bucket's lock."""

    def __init__(
        self,
        table: VbucketTable,
        writers: Sequence[DocumentWriter],
        replica_progress: ReplicaProgress,
        writes: WritePath,
        clock: Callable[[], float],
    ) -> None:
        """Begin with the prepares of all vbuckets; ``clock`` returns seconds since 1970.

        ``writers`` has the present writer of each vbucket; call ``recover`` after a change.
        """
        self._table, self._replicas = table, replica_progress
        self._writes, self._clock = writes, clock
        self._writers = writers
        self._writes_of = [SyncWrites(writer) for writer in writers]
        self._pending: set[int] = set()
        self.on_pending: Listeners[[]] = Listeners()
        """A sync write began: ``check`` must run at intervals while ``has_pending``."""
        for vbucket in range(len(table.vbuckets)):
            self.recover(vbucket)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def require_possible(self, vbucket: int) -> None:
        """Raise RefusedError DURABILITY_IMPOSSIBLE if too few nodes have a vbucket."""
        chain = self._chain_of(vbucket)
        if not is_possible(chain):
            found = sum(replica is not None for replica in chain)
            raise RefusedError(
                Status.DURABILITY_IMPOSSIBLE,
                f"vbucket {vbucket}: found {found} of {len(chain)} nodes, too few for a majority",
            )

    def track(self, prepare: Version, deadline: float, answer: Answer) -> None:
        """Follow a sync write whose prepare was appended; it may end in this call."""
        self._writes_of[prepare.vbucket].track(prepare, deadline, answer)
        self._writes.flush()  # the level may demand the active's disk
        self._go_on(prepare.vbucket)
        self._watch(prepare.vbucket)

    def recover(self, vbucket: int) -> None:
        """Start over: the vbucket has changed its state or branch, or another took its place.

        An active vbucket commits its prepares again. Waiting clients get SYNC_WRITE_AMBIGUOUS.
        """
        is_active = self._table.vbuckets[vbucket].state is VbucketState.ACTIVE
        self._writes_of[vbucket].recover(self._writers[vbucket], commits_prepares=is_active)
        self._watch(vbucket)

    def forget(self, vbucket: int) -> None:
        """Leave the vbucket's prepares as they are; waiting clients get SYNC_WRITE_AMBIGUOUS."""
        self._writes_of[vbucket].recover(self._writers[vbucket], commits_prepares=False)
        self._watch(vbucket)

    def _watch(self, vbucket: int) -> None:
        if self._writes_of[vbucket].is_pending:
            self._pending.add(vbucket)
            self.on_pending()

    def acknowledged(self, vbucket: int) -> None:
        if vbucket in self._pending:
            self._go_on(vbucket)

    def check(self) -> None:
        """Advance all sync writes that can advance.

        Raises:
            OSError: a vbucket's commits or aborts cannot be written; the others did advance.
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
        data, writes = self._table.vbuckets[vbucket].data, self._writes_of[vbucket]
        before = data.high_seqno
        outcomes: list[Told] = list(writes.step(self._chain_of(vbucket), self._clock()))
        try:
            if data.high_seqno != before:
                self._writes.wrote(vbucket)
        finally:  # the outcome is final even if the disk fails, so clients must get it
            if not writes.is_pending:
                self._pending.discard(vbucket)
            for answer, status in outcomes:
                answer(status)

    def _chain_of(self, vbucket: int) -> Chain:
        data = self._table.vbuckets[vbucket].data
        active = NodeProgress(data.high_seqno, data.disk.persisted_seqno)
        return (active, *self._replicas.behind(vbucket))
