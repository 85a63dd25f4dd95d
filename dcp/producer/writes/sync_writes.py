"""Tracks the sync writes of one vbucket, from their prepare to a commit or an abort.

    state            event           next state       result
    PENDING          ACKNOWLEDGED    COMMITTED        appends the document; SUCCESS
    PENDING          TIMED_OUT       ABORTED          appends an abort; SYNC_WRITE_AMBIGUOUS
    PENDING          IMPOSSIBLE      ABORTED          the same: too few nodes are left
    PENDING          RECOVERED       MAYBE_VISIBLE    SYNC_WRITE_AMBIGUOUS: failover or restart
    either           GONE            FORGOTTEN        SYNC_WRITE_AMBIGUOUS: collection dropped
    MAYBE_VISIBLE    ACKNOWLEDGED    COMMITTED        appends the document; no client waits

A write is committed when a majority of its chain has acknowledged its prepare: the node of the
active and those of the replicas. Replicas acknowledge in seqno order, so commits keep that order
too. A write that may have been visible before a failover is never aborted; until its new commit
nobody can read its key. Sources: kv_engine
``engines/ep/src/durability/active_durability_monitor.cc``, ``engines/ep/src/vbucket.cc``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from dcp.producer.writes.document_writer import DocumentWriter
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.server.vbucket.request_framing import DurabilityLevel
from dcp.wire.vocabulary import Opcode, Status


class NodeProgress(NamedTuple):
    memory_seqno: int
    """The newest seqno that the active has, or that the replica acknowledged."""
    persisted_seqno: int


Chain = Sequence[NodeProgress | None]
"""One entry for the active, then one per replica of the bucket's settings; None: it has no node."""


def majority_of(chain: Chain) -> int:
    return len(chain) // 2 + 1


def is_possible(chain: Chain) -> bool:
    """Return False if too few nodes exist to ever commit a sync write."""
    return sum(node is not None for node in chain) >= majority_of(chain)


class WriteState(Enum):
    PENDING = "pending"
    MAYBE_VISIBLE = "maybe visible"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FORGOTTEN = "forgotten"


class WriteEvent(Enum):
    ACKNOWLEDGED = "acknowledged"
    TIMED_OUT = "timed out"
    IMPOSSIBLE = "impossible"
    RECOVERED = "recovered"
    GONE = "gone"


NEXT: Final = {
    (WriteState.PENDING, WriteEvent.ACKNOWLEDGED): WriteState.COMMITTED,
    (WriteState.PENDING, WriteEvent.TIMED_OUT): WriteState.ABORTED,
    (WriteState.PENDING, WriteEvent.IMPOSSIBLE): WriteState.ABORTED,
    (WriteState.PENDING, WriteEvent.RECOVERED): WriteState.MAYBE_VISIBLE,
    (WriteState.PENDING, WriteEvent.GONE): WriteState.FORGOTTEN,
    (WriteState.MAYBE_VISIBLE, WriteEvent.ACKNOWLEDGED): WriteState.COMMITTED,
    (WriteState.MAYBE_VISIBLE, WriteEvent.GONE): WriteState.FORGOTTEN,
}
"""All other pairs change nothing. A write in MAYBE_VISIBLE, for example, has no deadline."""

Answer = Callable[[Status], None]
"""Callback that sends the result to the client: SUCCESS or SYNC_WRITE_AMBIGUOUS."""
Told = tuple[Answer, Status]
"""A result that the caller must send to its client."""


@dataclass(slots=True)
class _Write:
    prepare: Version
    deadline: float
    answer: Answer | None
    state: WriteState = WriteState.PENDING

    @property
    def level(self) -> int:
        return self.prepare.sync.level if self.prepare.sync else 0

    @property
    def key(self) -> tuple[int, bytes]:
        return self.prepare.collection, self.prepare.key


class SyncWrites:
    """The sync writes of one vbucket; times are seconds since 1970."""

    def __init__(self, writer: DocumentWriter) -> None:
        self._writer = writer
        self._writes: list[_Write] = []
        """In the order of their prepares."""
        self._results: list[Told] = []
        """Results that ``step`` must return, as no client was called yet."""

    @property
    def is_pending(self) -> bool:
        """True if a write is under way, or ``step`` has results to return."""
        return bool(self._writes or self._results)

    def track(self, prepare: Version, deadline: float, answer: Answer) -> None:
        self._writes.append(_Write(prepare, deadline, answer))

    def recover(self, writer: DocumentWriter, *, commits_prepares: bool) -> None:
        """Start over with ``writer``: the history was cut, handed over, restored or replaced.

        Waiting clients get SYNC_WRITE_AMBIGUOUS. With ``commits_prepares`` the vbucket commits its
        prepares again, as an active one must; else it leaves them as they are.
        """
        for write in self._writes:
            if write.answer is not None:
                self._results.append((write.answer, Status.SYNC_WRITE_AMBIGUOUS))
        self._writer = writer
        state = NEXT[WriteState.PENDING, WriteEvent.RECOVERED]
        pending = writer.data.newest.pending_prepares() if commits_prepares else []
        self._writes = [_Write(prepare, inf, None, state) for prepare in pending]
        writer.hold_back(write.key for write in self._writes)

    def step(self, chain: Chain, now: float) -> Sequence[Told]:
        """Append the commits and aborts that are due; return the results for their clients."""
        results, self._results = self._results, []
        acknowledged = _majority_seqno(chain, self._writes)
        left: list[_Write] = []
        for write in self._writes:
            event = self._event(write, acknowledged, chain, now)
            state = write.state if event is None else NEXT.get((write.state, event), write.state)
            if state is write.state:
                left.append(write)
                continue
            self._end(write, state)
            if write.answer is not None:
                is_done = state is WriteState.COMMITTED
                status = Status.SUCCESS if is_done else Status.SYNC_WRITE_AMBIGUOUS
                results.append((write.answer, status))
        self._writes = left
        return results

    def _event(
        self, write: _Write, acknowledged: int, chain: Chain, now: float
    ) -> WriteEvent | None:
        prepare = write.prepare
        newest = self._writer.data.newest
        if newest.pending_prepare(prepare.key, prepare.collection) is not prepare:
            return WriteEvent.GONE
        if prepare.seqno <= acknowledged:
            return WriteEvent.ACKNOWLEDGED
        if not is_possible(chain):
            return WriteEvent.IMPOSSIBLE
        return WriteEvent.TIMED_OUT if now >= write.deadline else None

    def _end(self, write: _Write, state: WriteState) -> None:
        self._writer.maybe_visible.discard(write.key)
        if state is WriteState.FORGOTTEN:
            return
        seqno = self._writer.data.high_seqno + 1
        is_commit = state is WriteState.COMMITTED
        complete = commit_of if is_commit else abort_of
        self._writer.documents.append(complete(write.prepare, seqno))


def commit_of(prepare: Version, seqno: int) -> Version:
    """Return the document or tombstone that a prepare becomes, at ``seqno``."""
    deletes = bool(prepare.sync and prepare.sync.deletes)
    content = Content(
        prepare.value,
        prepare.datatype,
        prepare.flags,
        # A prepare of a deletion carries the delete time in its expiry field.
        0 if deletes else prepare.expiry,
        opcode=int(Opcode.DCP_DELETION if deletes else Opcode.DCP_MUTATION),
        delete_time=prepare.expiry if deletes else 0,
        sync=SyncWrite(prepare.seqno),
    )
    return _after(prepare, content, seqno)


def abort_of(prepare: Version, seqno: int) -> Version:
    content = Content(opcode=int(Opcode.DCP_ABORT), sync=SyncWrite(prepare.seqno))
    return _after(prepare, content, seqno)


def _after(prepare: Version, content: Content, seqno: int) -> Version:
    return Version(
        prepare.vbucket,
        prepare.key,
        content,
        seqno=seqno,
        rev=prepare.rev,
        cas=prepare.cas,
        collection=prepare.collection,
    )


def _majority_seqno(chain: Chain, writes: Sequence[_Write]) -> int:
    """Return the highest seqno that a majority has acknowledged, the active included."""
    seqnos = [
        0 if node is None else _acknowledged_seqno(node, writes, is_active=not index)
        for index, node in enumerate(chain)
    ]
    # The n-th highest value is what at least n nodes have reached.
    return min(seqnos[0], sorted(seqnos, reverse=True)[majority_of(chain) - 1])


def _acknowledged_seqno(node: NodeProgress, writes: Sequence[_Write], *, is_active: bool) -> int:
    needs_disk = (
        DurabilityLevel.MAJORITY_AND_PERSIST_ON_ACTIVE
        if is_active
        else DurabilityLevel.PERSIST_TO_MAJORITY
    )
    # A node must persist these levels first, so the first unpersisted prepare holds back all later
    # ones.
    for write in writes:
        seqno = write.prepare.seqno
        if write.level >= needs_disk and seqno > node.persisted_seqno:
            return min(node.memory_seqno, seqno - 1)
    return node.memory_seqno
