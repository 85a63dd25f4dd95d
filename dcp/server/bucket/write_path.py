"""Takes writes from a command to the disk, to memory accounts and to streams."""

from collections.abc import Iterator
from contextlib import contextmanager

from dcp.server.bucket.compactor import compact
from dcp.server.bucket.dcp_connections import DcpConnections
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.server_settings import ServerSettings
from dcp.server.vbucket.changed_vbuckets import ChangedVbuckets
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import Status


class WritePath:
    """Runs commands on vbuckets and settles their writes; callers hold the bucket's lock.

    All writes of a batch become one disk snapshot of each vbucket. Outside a batch, each command
    makes its own disk snapshot. Several snapshots go to disk together: with a data folder when the
    flusher writes, in memory at the end of a turn.
    """

    def __init__(
        self,
        settings: ServerSettings,
        table: VbucketTable,
        memory: CheckpointAccount,
        connections: DcpConnections,
        changes: ChangedVbuckets,
    ) -> None:
        """``memory`` counts vbuckets' checkpoints."""
        self._settings, self._table, self._memory = settings, table, memory
        self._connections, self._changes = connections, changes
        self.flusher = flusher = table.flusher
        """None for a bucket in memory."""
        self._written: set[int] = set()
        self._unflushed: set[int] = set()
        """Vbuckets in memory with batches that ``flush`` must still write."""
        self._open_batches = 0
        self._is_in_turn = False
        if flusher is not None:
            flusher.on_written.add(self._stored)

    # --- batches

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Combine all writes inside into one disk snapshot of each vbucket."""
        self._open_batches += 1
        try:
            yield
        finally:
            self._open_batches -= 1
            if not self._open_batches:
                self._finish_batch()

    @property
    def is_in_batch(self) -> bool:
        return self._open_batches > 0

    def wrote(self, vbucket: int) -> None:
        """Note that ``vbucket`` has new items, and settle them unless a batch is open."""
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
        """Leave the writes inside to a later ``flush``; other writes are flushed at once.

        Each command still makes its own disk snapshot.
        """
        self._is_in_turn = True
        try:
            yield
        finally:
            self._is_in_turn = False

    def flush(self) -> None:
        """Write all batches that wait for a disk in memory, one write for each vbucket."""
        for vbucket in self._unflushed:
            written = self._table.vbuckets[vbucket]
            written.data.persistence.flush()
            compact(written, self._settings.clock(), in_passing=True)
            self._memory.note(written.data.checkpoints)
        self._unflushed.clear()

    # --- memory and disk

    def require_memory(self) -> None:
        """Raise RefusedError ETMPFAIL if checkpoints fill their quota and none can be freed."""
        if not self._memory.is_full:
            return
        if self._memory.looks_again():
            self._recover_memory()
        if self._memory.is_full:
            raise RefusedError(
                Status.ETMPFAIL,
                f"write: checkpoints take {self._memory.memory_bytes} bytes, expected less than "
                f"{self._settings.checkpoint_quota_bytes}; replicas or the disk still need them",
            )

    def _recover_memory(self) -> None:
        """Free checkpoint memory; streams that lose their cursors read from disk again."""
        self.flush()  # checkpoints cannot free items that are on no disk
        vbuckets = self._table.vbuckets
        dropped = self._memory.recover(vbucket.data.checkpoints for vbucket in vbuckets)
        for vbucket, cursors in dropped.items():
            self._connections.cursors_dropped(vbuckets[vbucket].data, cursors)

    def _stored(self, vbucket: Vbucket) -> None:
        """Free the memory of items that a flush has written."""
        # Replicas count in accounts of their own, one for each node.
        is_owned = self._table.vbuckets[vbucket.id] is vbucket
        memory = self._memory if is_owned else self._table.replicas.memory_of(vbucket)
        if memory is not None:
            memory.note(vbucket.data.checkpoints)
            memory.relieve()

    @property
    def has_room(self) -> bool:
        return self.flusher is None or self.flusher.has_room

    def make_room(self) -> bool:
        """Write pending data if there is too much; return ``has_room`` afterwards."""
        return self.flusher is None or self.flusher.make_room()

    # --- replicas

    def received(self, node: int, vbucket: int) -> None:
        """Settle the items that a node's replica received, and wake its streams."""
        replicas = self._table.replicas
        replica = replicas.at(node, vbucket)
        if replica is None or not replica.store_received():
            return
        if self.flusher is not None:
            self.flusher.note(replica.vbucket)
            self.flusher.keep_up()
        else:
            compact(replica.vbucket, self._settings.clock(), in_passing=True)
        self._connections.cursors_dropped(replica.vbucket.data, replica.take_lost_cursors())
        for each, cursors in replicas.note_memory(node, vbucket).items():
            if (short := replicas.at(node, each)) is not None:
                self._connections.cursors_dropped(short.vbucket.data, cursors)
        self._changes.add(vbucket)
        self._table.replicas_moved.notify_all()
