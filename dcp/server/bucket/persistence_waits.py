"""Answers clients that wait until a seqno is on disk (SEQNO_PERSISTENCE).

Source: kv_engine ``engines/ep/src/ep_engine.cc``, handleSeqnoPersistence; ``vbucket.cc``,
getSeqnoPersistenceRequestsToNotify; ``seqno_persistence_timeout`` in ``configuration.json``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.model.listeners import Listeners
from dcp.server.model.server_settings import ServerSettings
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import Status


@dataclass(frozen=True, slots=True)
class _Wait:
    vbucket: Vbucket
    node: int
    seqno: int
    deadline: float
    answer: Callable[[Status], None]


class PersistenceWaits:
    """Waiting clients; callers hold the bucket's lock.

    A connection waits for one seqno at a time, so connections bound the number of waits.
    """

    def __init__(self, table: VbucketTable, settings: ServerSettings) -> None:
        self._table = table
        self._clock = settings.clock
        self._wait_seconds = settings.persistence_wait_seconds
        self._waits: dict[object, _Wait] = {}
        self.on_pending: Listeners[[]] = Listeners()
        """Called when a wait begins: ``check`` must run at intervals while ``has_pending``."""

    @property
    def has_pending(self) -> bool:
        return bool(self._waits)

    def add(
        self,
        waiter: object,
        vbucket: Vbucket,
        node: int,
        seqno: int,
        answer: Callable[[Status], None],
    ) -> None:
        """Answer ``waiter`` when ``node`` has the seqno on disk, perhaps in this call.

        It gets ETMPFAIL after the timeout, or if the vbucket leaves the node.
        """
        now = self._clock()
        wait = _Wait(vbucket, node, seqno, now + self._wait_seconds, answer)
        status = self._status(wait, now)
        if status is not None:
            answer(status)
        else:
            self._waits[waiter] = wait
            self.on_pending()

    def forget(self, waiter: object) -> None:
        self._waits.pop(waiter, None)

    def check(self) -> None:
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
        # Another object in its place: the vbucket moved, was replaced, or went.
        if self._table.at(wait.vbucket.id, wait.node) is not wait.vbucket:
            return Status.ETMPFAIL
        if wait.seqno <= wait.vbucket.data.disk.persisted_seqno:
            return Status.SUCCESS
        return Status.ETMPFAIL if now >= wait.deadline else None
