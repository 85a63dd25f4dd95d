"""Answers clients that wait until a seqno is on disk; used under the bucket's lock.

Once it is, they are told so; when their time is over, or the vbucket is there no more, ETMPFAIL
(kv_engine ``engines/ep/src/ep_engine.cc``, handleSeqnoPersistence; ``vbucket.cc``,
getSeqnoPersistenceRequestsToNotify; ``seqno_persistence_timeout`` in ``configuration.json``). A
connection waits for one thing at a time, so there are no more of them than connections.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.listeners import Listeners
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import Status


@dataclass(frozen=True, slots=True)
class _Wait:
    vbucket: Vbucket
    node: int
    seqno: int
    deadline: float
    answer: Callable[[Status], None]


class PersistenceWaits:
    """``on_pending`` is told when ``check`` is wanted from now on, until nothing is pending."""

    def __init__(self, table: VbucketTable, settings: ClusterSettings) -> None:
        self._table = table
        self._clock = settings.clock
        self._wait_seconds = settings.persistence_wait_seconds
        self._waits: dict[object, _Wait] = {}
        self.on_pending: Listeners[[]] = Listeners()

    @property
    def has_pending(self) -> bool:
        """True if a client waits."""
        return bool(self._waits)

    def add(
        self,
        waiter: object,
        vbucket: Vbucket,
        node: int,
        seqno: int,
        answer: Callable[[Status], None],
    ) -> None:
        """Let ``waiter`` wait for what ``node`` has of a vbucket; it may be answered at once."""
        now = self._clock()
        wait = _Wait(vbucket, node, seqno, now + self._wait_seconds, answer)
        status = self._status(wait, now)
        if status is not None:
            answer(status)
        else:
            self._waits[waiter] = wait
            self.on_pending()

    def forget(self, waiter: object) -> None:
        """Do not answer any more: the connection is gone."""
        self._waits.pop(waiter, None)

    def check(self) -> None:
        """Answer those for whom it is decided."""
        now = self._clock()
        decided = [
            (waiter, wait.answer, status)
            for waiter, wait in self._waits.items()
            if (status := self._status(wait, now)) is not None
        ]
        for waiter, answer, status in decided:
            del self._waits[waiter]
            answer(status)

    def _status(self, wait: _Wait, now: float) -> Status | None:
        if self._table.at(wait.vbucket.id, wait.node) is not wait.vbucket:
            return Status.ETMPFAIL
        if wait.seqno <= wait.vbucket.data.disk.persisted_seqno:
            return Status.SUCCESS
        return Status.ETMPFAIL if now >= wait.deadline else None
