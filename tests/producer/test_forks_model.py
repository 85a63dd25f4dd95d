"""Vbuckets whose history forks, against a model that copies whole histories.

The model knows nothing of tails, records or replaced versions: a branch is a list of everything
that was written on it or before it, and a fork copies the part that is left.
"""

from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from dcp.producer.documents import Document, DocumentError
from dcp.producer.failover import ResumeRequest, Rules, judge
from dcp.producer.preload import PreloadedSegment, PreloadSettings
from dcp.producer.settings import ClusterSettings
from dcp.producer.vbucket import Vbucket
from dcp.types import MAX_FAILOVER_ENTRIES, U64_MAX
from dcp.wire.vocabulary import Status, VbucketState

KEYS = [b"a", b"b", b"c", b"doc:0000000000", b"doc:0000000003"]
Held = dict[bytes, tuple[int, int]]
"""Seqno and CAS of each living document."""


@dataclass
class Model:
    """Every branch by its uuid, as (seqno, cas, key, is a deletion) of all that it ever held."""

    branches: dict[int, list[tuple[int, int, bytes, bool]]]
    current: int
    base: int
    newest_cas: int = 0
    purged: set[int] = field(default_factory=set)

    def write(self, seqno: int, cas: int, key: bytes, deleted: bool) -> None:
        assert cas > self.newest_cas  # on whatever branch
        self.newest_cas = cas
        self.branches[self.current].append((seqno, cas, key, deleted))

    def fork(self, uuid: int, cut: int) -> None:
        assert uuid not in self.branches
        self.branches[uuid] = [e for e in self.branches[self.current] if e[0] <= cut]
        self.current = uuid

    def high(self, uuid: int) -> int:
        return max((e[0] for e in self.branches[uuid]), default=self.base)

    def state(self, uuid: int, seqno: int) -> Held:
        held: Held = {}
        for at, cas, key, deleted in self.branches[uuid]:
            if at <= seqno:
                held.pop(key, None)
                if not deleted:
                    held[key] = (at, cas)
        return held


class Forking:
    """A vbucket and its model, driven by the same steps."""

    def __init__(
        self, base: int, preloaded: int, lag: int, snapshot: int, unpersisted: int
    ) -> None:
        random = Random(base + preloaded)
        settings = ClusterSettings(
            replica_lag_seqnos=lag,
            replica_snapshot_seqnos=snapshot,
            unpersisted_seqnos=unpersisted,
        )
        self.vbucket = Vbucket(0, lambda: random.randint(1, U64_MAX), settings)
        self.vbucket.history.start_at(base)
        self.model = Model({self.uuid: []}, self.uuid, base)
        self.now = 1.0
        if preloaded:
            ids = np.arange(preloaded, dtype=np.int64)
            self.vbucket.preload(
                PreloadedSegment(
                    0, ids, PreloadSettings(preloaded, 40), first_seqno=base + 1, first_cas=1 << 16
                )
            )
            self.vbucket.documents.clock.raise_floor(preloaded + 1 << 16)
            for row in range(preloaded):
                self.model.write(base + 1 + row, row + 1 << 16, b"doc:%010d" % row, False)

    @property
    def uuid(self) -> int:
        return self.vbucket.failover_log.current_uuid

    @property
    def high(self) -> int:
        return self.vbucket.history.high_seqno

    def write(self, key: bytes, kind: str) -> None:
        documents = self.vbucket.documents
        self.page()  # a fork may have brought back what is due
        try:
            if kind == "delete":
                version = documents.delete(key, self.now)
            else:
                expiry = int(self.now) + 40 * 24 * 3600 if kind == "expiring" else 0
                version = documents.set(key, b"{}", self.now, expiry=expiry)
        except DocumentError as error:
            assert error.status is Status.KEY_ENOENT
            assert key not in self.model.state(self.uuid, self.high)
        else:
            self.model.write(version.seqno, version.cas, key, kind == "delete")

    def expire(self) -> None:
        """Let everything be due, and the pager find it."""
        self.now += 50 * 24 * 3600
        self.page()

    def page(self) -> None:
        """Run the expiry pager."""
        before = self.high
        living = self.vbucket.history.live_at(before)
        due = {v.key for v in living if 0 < v.expiry <= self.now}
        assert self.vbucket.documents.expire_due(self.now) == len(due)
        for version in self.vbucket.history.select(before, self.high).versions:
            assert version.is_deleted
            self.model.write(version.seqno, version.cas, version.key, True)
            due.remove(version.key)
        assert not due

    def fork(self, how: str, amount: int) -> None:
        vbucket, high, base = self.vbucket, self.high, self.model.base
        old = vbucket.failover_log.entries
        if how == "promote":
            cut = vbucket.replica_seqno
            entry = max(base, cut - cut % vbucket._settings.replica_snapshot_seqnos)
            vbucket.promote()
        elif how == "crash":
            cut = entry = vbucket.history.persisted_seqno
            vbucket.crash(None)
            assert vbucket.history.persisted_seqno == cut
        elif how == "lose":
            cut = entry = max(base, high - amount)
            vbucket.crash(amount)
        else:
            cut = entry = high
            vbucket.set_state(VbucketState.REPLICA)
            assert vbucket.failover_log.entries == old
            vbucket.set_state(VbucketState.ACTIVE)
        self.model.fork(self.uuid, cut)
        assert self.high == cut
        newest = vbucket.failover_log.entries[0]
        assert (newest.vb_uuid, newest.seqno) == (self.uuid, entry)
        left = tuple(e for e in old if e.seqno <= entry)
        assert vbucket.failover_log.entries[1:] == left[: MAX_FAILOVER_ENTRIES - 1]

    def purge(self, amount: int) -> None:
        up_to = self.high - amount
        purged = self.vbucket.history.purge(max(0, up_to))
        assert purged >= 0


step = st.one_of(
    st.tuples(
        st.just("write"), st.sampled_from(KEYS), st.sampled_from(["set", "delete", "expiring"])
    ),
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.sampled_from(["set", "delete"])),
    st.tuples(
        st.just("fork"), st.sampled_from(["promote", "crash", "lose", "state"]), st.integers(0, 9)
    ),
    st.tuples(st.sampled_from(["pause", "resume", "expire"]), st.none(), st.none()),
    st.tuples(st.just("purge"), st.none(), st.integers(0, 4)),
)
shape = st.tuples(
    st.sampled_from([0, 7, 2**63]),
    st.integers(0, 5),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(0, 4),
)


def _driven(sizes: tuple[int, int, int, int, int], steps: list[tuple[str, ...]]) -> Forking:
    forking = Forking(*sizes)
    vbucket = forking.vbucket
    for name, first, second in steps:
        match name:
            case "write":
                forking.write(first, second)  # type: ignore[arg-type]
            case "fork":
                forking.fork(first, second)  # type: ignore[arg-type]
            case "purge":
                forking.purge(second)  # type: ignore[arg-type]
            case "pause":
                vbucket.pause_replication()
            case "resume":
                vbucket.resume_replication()
            case "expire":
                forking.expire()
    return forking


def _seqnos_and_cas(documents: dict[bytes, Document]) -> Held:
    return {key: (document.seqno, document.cas) for key, document in documents.items()}


@given(shape, st.lists(step, max_size=40))
def test_every_branch_is_known_at_every_seqno(
    sizes: tuple[int, int, int, int, int], steps: list[tuple[str, ...]]
) -> None:
    forking = _driven(sizes, steps)
    model, record = forking.model, forking.vbucket.record
    assert record is not None
    assert record.vb_uuids == tuple(model.branches)
    event(f"{len(model.branches)} branches")
    for uuid in model.branches:
        for seqno in range(model.base, model.high(uuid) + 2):
            told = _seqnos_and_cas(record.state_at(seqno, uuid))
            assert told == model.state(uuid, seqno)
    assert record.state_at(forking.high) == record.state_at(forking.high, forking.uuid)


@given(shape, st.lists(step, max_size=40))
def test_the_history_that_is_left_is_the_current_branch(
    sizes: tuple[int, int, int, int, int], steps: list[tuple[str, ...]]
) -> None:
    forking = _driven(sizes, steps)
    model, history = forking.model, forking.vbucket.history
    assert history.high_seqno == model.high(forking.uuid)
    for seqno in range(model.base, history.high_seqno + 1):
        held = {v.key: (v.seqno, v.cas) for v in history.live_at(seqno)}
        assert held == model.state(forking.uuid, seqno)
    for key in KEYS:
        newest = history.newest(key)
        events = [e for e in model.branches[forking.uuid] if e[2] == key]
        found = None if newest is None else (newest.seqno, newest.cas, key, newest.is_deleted)
        assert found == (events[-1] if events else None)


@given(shape, st.lists(step, max_size=40), st.sampled_from(["document", "server"]))
def test_who_may_go_on_or_goes_back_holds_what_the_new_branch_holds(
    sizes: tuple[int, int, int, int, int], steps: list[tuple[str, ...]], rules: Rules
) -> None:
    """A client with the state of any branch that was ever streamed, complete at any seqno."""
    forking = _driven(sizes, steps)
    model, facts = forking.model, forking.vbucket.facts()
    for uuid in model.branches:
        for seqno in range(model.base + 1, model.high(uuid) + 1):
            verdict = judge(ResumeRequest(seqno, uuid, seqno, seqno), facts, rules)
            event(verdict.status.name)
            back = verdict.rollback_seqno if verdict.status is Status.ROLLBACK else seqno
            assert back is not None
            assert back <= seqno
            assert model.state(uuid, back) == model.state(forking.uuid, back)


@given(shape, st.lists(step, max_size=40))
def test_only_tombstones_are_purged_and_never_the_newest_item(
    sizes: tuple[int, int, int, int, int], steps: list[tuple[str, ...]]
) -> None:
    forking = _driven(sizes, steps)
    model, history = forking.model, forking.vbucket.history
    high = history.high_seqno
    shown = history.select(model.base, high)
    seqnos = {v.seqno for v in shown.versions}
    if shown.segment is not None:
        seqnos |= {shown.segment.seqno_of(int(row)) for row in shown.rows}
    newest = {key: (seqno, deleted) for seqno, _, key, deleted in model.branches[forking.uuid]}
    hidden = {seqno: deleted for seqno, deleted in newest.values() if seqno not in seqnos}
    assert all(hidden.values())
    assert high not in hidden
    assert all(seqno <= history.purge_seqno <= history.persisted_seqno for seqno in hidden)
    assert history.purge_seqno < max(high, 1)
