"""Tracks the vbuckets of a bucket with sync writes under way, and advances them. Under the lock."""

from collections.abc import Callable

from dcp.server.bucket.replicas import Replicas
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.bucket.write_path import WritePath
from dcp.server.model.listeners import Listeners
from dcp.server.model.versions import Version
from dcp.server.vbucket.documents import DocumentError
from dcp.server.vbucket.replication_chain import Chain, CopyProgress, is_possible
from dcp.server.vbucket.sync_writes import Answer, Told
from dcp.wire.vocabulary import Status


class SyncWriteBoard:
    """``on_pending`` is told when ``check`` is wanted from now on, until nothing is pending."""

    def __init__(
        self,
        table: VbucketTable,
        replicas: Replicas,
        writes: WritePath,
        clock: Callable[[], float],
    ) -> None:
        """``clock`` returns seconds since 1970."""
        self._table, self._replicas, self._writes, self._clock = table, replicas, writes, clock
        self._pending: set[int] = set()
        self.on_pending: Listeners[[]] = Listeners()
        for vbucket in range(len(table.vbuckets)):
            self.watch(vbucket)

    @property
    def has_pending(self) -> bool:
        """True if a vbucket has a sync write under way."""
        return bool(self._pending)

    def require_possible(self, vbucket: int) -> None:
        """Raise DocumentError DURABILITY_IMPOSSIBLE where too few copies of a vbucket exist."""
        chain = self._chain_of(vbucket)
        if not is_possible(chain):
            found = sum(copy is not None for copy in chain)
            raise DocumentError(
                Status.DURABILITY_IMPOSSIBLE,
                f"vbucket {vbucket}: found {found} of {len(chain)} copies, too few for a majority",
            )

    def track(self, prepare: Version, deadline: float, answer: Answer) -> None:
        """Take a sync write whose prepare was appended; it may end at once."""
        self._table.vbuckets[prepare.vbucket].sync_writes.track(prepare, deadline, answer)
        self._writes.flush()  # it may have to be on disk
        self._go_on(prepare.vbucket)
        self.watch(prepare.vbucket)

    def watch(self, vbucket: int) -> None:
        """Look after a vbucket that may have sync writes under way."""
        if self._table.vbuckets[vbucket].sync_writes.is_pending:
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
        state = self._table.vbuckets[vbucket]
        before = state.data.high_seqno
        told: list[Told] = list(state.sync_writes.step(self._chain_of(vbucket), self._clock()))
        try:
            if state.data.high_seqno != before:
                self._writes.wrote(vbucket)
        finally:  # who waits must hear of what was done
            if not state.sync_writes.is_pending:
                self._pending.discard(vbucket)
            for answer, status in told:
                answer(status)

    def _chain_of(self, vbucket: int) -> Chain:
        """Return the copies of a vbucket as they are now."""
        data = self._table.vbuckets[vbucket].data
        active = CopyProgress(data.high_seqno, data.disk.persisted_seqno)
        return (active, *self._replicas.behind(vbucket))
