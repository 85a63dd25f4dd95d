"""The write path of a bucket: from a command that wrote to the disk, to memory and to streams.

All that is written inside a batch becomes one disk snapshot of each vbucket. Outside a batch each
command makes its own disk snapshot. Many of them go to disk at once: to a data folder when the
flusher writes, to a disk in memory at the end of a turn. What copies receive takes the same path.
Used under the bucket's lock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec

from dcp.server.bucket.compactor import compact_in_passing
from dcp.server.bucket.dcp_connections import DcpConnections
from dcp.server.bucket.flusher import Flusher
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.versions import Version
from dcp.server.vbucket.changed_vbuckets import ChangedVbuckets
from dcp.server.vbucket.documents import DocumentError, DocumentStore
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import Status

P = ParamSpec("P")


class WritePath:
    """Writes to vbuckets and copies, and what follows from them."""

    def __init__(
        self,
        settings: ClusterSettings,
        table: VbucketTable,
        flusher: Flusher | None,
        memory: CheckpointAccount,
        connections: DcpConnections,
        changes: ChangedVbuckets,
    ) -> None:
        """``flusher`` is there with a data folder; ``memory`` counts the vbuckets' checkpoints."""
        self._settings, self._table, self._memory = settings, table, memory
        self._connections, self._changes = connections, changes
        self.flusher = flusher
        self._written: set[int] = set()
        self._unflushed: set[int] = set()
        """Vbuckets with batches that a disk in memory has not got yet."""
        self._open_batches = 0
        self._is_in_turn = False
        if flusher is not None:
            flusher.on_written.add(self._stored)

    # --- batches

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Let everything that is written inside be one disk snapshot of each vbucket."""
        self._open_batches += 1
        try:
            yield
        finally:
            self._open_batches -= 1
            if not self._open_batches:
                self._finish_batch()

    @property
    def is_in_batch(self) -> bool:
        """True if writes wait for others to be one disk snapshot with them."""
        return self._open_batches > 0

    def wrote(self, vbucket: int) -> None:
        """Note that ``vbucket`` has new items: its disk and its streams must hear of them."""
        self._written.add(vbucket)
        self._changes.add(vbucket)
        if not self._open_batches:
            self._finish_batch()

    def _finish_batch(self) -> None:
        for vbucket in self._written:
            written = self._table.vbuckets[vbucket]
            written.data.end_batch()
            self._memory.note(written.data.checkpoints)
            if self.flusher is not None:
                self.flusher.note(written)
        if self.flusher is None:
            self._unflushed |= self._written
        self._written.clear()
        if self.flusher is not None:
            self.flusher.keep_up()
        elif not self._is_in_turn:
            self.flush()
        if self._memory.is_short:
            self._recover_memory()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Leave the writes inside to ``flush``, at the end of this turn or of a later one.

        Each command still makes a disk snapshot of its own. What is written outside of turns is
        flushed at once.
        """
        self._is_in_turn = True
        try:
            yield
        finally:
            self._is_in_turn = False

    def flush(self) -> None:
        """Write what turns left to a disk in memory: all that waits of a vbucket in one write."""
        for vbucket in self._unflushed:
            written = self._table.vbuckets[vbucket]
            written.data.persistence.flush()
            compact_in_passing(written, self._settings.clock())
            self._memory.note(written.data.checkpoints)
        self._unflushed.clear()

    # --- commands

    def write_to(
        self,
        vbucket: Vbucket,
        command: Callable[Concatenate[DocumentStore, P], Version],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Version:
        """Run a KV command on this vbucket's store; its streams hear of what it changed.

        Raises:
            DocumentError: what the command refuses; ETMPFAIL while checkpoints take their whole
                quota.
        """
        if self._memory.is_full:
            self._require_memory()
        return self.read_from(vbucket, command, *args, **kwargs)

    def read_from(
        self,
        vbucket: Vbucket,
        command: Callable[Concatenate[DocumentStore, P], Version],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Version:
        """Run a KV command that writes nothing but an expiry that it comes across."""
        before = vbucket.data.high_seqno
        try:
            return command(vbucket.documents, *args, **kwargs)
        finally:
            if vbucket.data.high_seqno != before:
                self.wrote(vbucket.id)

    # --- memory and disk

    def _require_memory(self) -> None:
        """Free checkpoint memory where it takes its whole quota.

        Raises:
            DocumentError: ETMPFAIL: none could be freed, or that was tried just now.
        """
        if self._memory.looks_again():
            self._recover_memory()
        if self._memory.is_full:
            raise DocumentError(
                Status.ETMPFAIL,
                f"write: checkpoints take {self._memory.memory_bytes} bytes, expected less than "
                f"{self._settings.checkpoint_quota_bytes}; copies or the disk still need them",
            )

    def _recover_memory(self) -> None:
        """Free checkpoint memory; streams whose cursors that takes go back to the disk."""
        self.flush()  # checkpoints keep what is on no disk
        vbuckets = self._table.vbuckets
        dropped = self._memory.recover(vbucket.data.checkpoints for vbucket in vbuckets)
        for vbucket, cursors in dropped.items():
            self._connections.cursors_dropped(vbuckets[vbucket].data, cursors)

    def _stored(self, vbucket: Vbucket) -> None:
        """Note that a vbucket or copy was written to disk: it may be gone from memory."""
        is_owned = self._table.vbuckets[vbucket.id] is vbucket
        memory = self._memory if is_owned else self._table.copies.memory_of(vbucket)
        if memory is not None:
            memory.note(vbucket.data.checkpoints)
            memory.relieve()

    @property
    def has_room(self) -> bool:
        """True if copies may receive more: as long as clients may write."""
        return self.flusher is None or self.flusher.has_room

    def make_room(self) -> bool:
        """Write what waits for the disk if it is too much and can be; return ``has_room`` then."""
        return self.flusher is None or self.flusher.make_room()

    # --- copies

    def received(self, node: int, vbucket: int) -> None:
        """Settle what a node's copy of ``vbucket`` received; its streams hear of it."""
        copies = self._table.copies
        copy = copies.at(node, vbucket)
        if copy is None or not copy.store_received():
            return
        if self.flusher is not None:
            self.flusher.note(copy.vbucket)
            self.flusher.keep_up()
        else:
            compact_in_passing(copy.vbucket, self._settings.clock())
        self._connections.cursors_dropped(copy.vbucket.data, copy.take_lost_cursors())
        for each, cursors in copies.note_memory(node, vbucket).items():
            if (short := copies.at(node, each)) is not None:
                self._connections.cursors_dropped(short.vbucket.data, cursors)
        self._changes.add(vbucket)
        self._table.copies_moved.notify_all()
