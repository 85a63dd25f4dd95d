"""Vbuckets whose history forks, against a model that copies whole histories.

The model knows nothing of tails, records or replaced versions: a branch is a list of everything
that was written on it or before it, and a fork copies the part that is left.
"""

from dataclasses import dataclass, field
from random import Random

from hypothesis import event, given
from hypothesis import strategies as st

from dcp.producer.branch_record import BranchRecord
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.resume_rules import Rules, judge
from dcp.server.model.state_changes import StateEvent
from dcp.server.model.versions import Version
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import MAX_FAILOVER_ENTRIES, U64_MAX
from dcp.wire.vocabulary import Status
from tests.producer.resuming import resuming

KEYS = [b"a", b"b", b"c", b"d", b"e"]
Held = dict[bytes, tuple[int, int]]
"""Seqno and CAS of each document."""


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

    def __init__(self, base: int, unpersisted: int) -> None:
        random = Random(base)
        self.vbucket = Vbucket(0, lambda: random.randint(1, U64_MAX), ClusterSettings())
        self.vbucket.data.persistence.lag_by(unpersisted)
        self.vbucket.data.start_at(base)
        self.record = BranchRecord(0, self.vbucket.failover_log)
        self.vbucket.data.on_append.add(self.record.append)
        self.writer = DocumentWriter(self.vbucket.documents)
        self.compacted = False
        self.model = Model({self.uuid: []}, self.uuid, base)
        self.now = 1.0

    @property
    def uuid(self) -> int:
        return self.vbucket.failover_log.current_uuid

    @property
    def high(self) -> int:
        return self.vbucket.data.high_seqno

    def write(self, key: bytes, kind: str) -> None:
        documents = self.writer
        self.page()  # a fork may have brought back what is due
        try:
            if kind == "delete":
                version = documents.delete(key, self.now)
            else:
                expiry = int(self.now) + 40 * 24 * 3600 if kind == "expiring" else 0
                version = documents.store(key, checked(b"{}"), self.now, expiry=expiry)
        except RefusedError as error:
            assert error.status is Status.KEY_ENOENT
            assert key not in self.model.state(self.uuid, self.high)
        else:
            self.vbucket.data.flush_batch()
            self.model.write(version.seqno, version.cas, key, kind == "delete")

    def expire(self) -> None:
        """Let everything be due, and the pager find it."""
        self.now += 50 * 24 * 3600
        self.page()

    def page(self) -> None:
        """Run the expiry pager."""
        before = self.high
        newest = [v for key in KEYS if (v := self.vbucket.data.newest.of_key(key)) is not None]
        due = {v.key for v in newest if not v.is_deleted and 0 < v.expiry <= self.now}
        assert self.writer.expire_due(self.now) == len(due)
        self.vbucket.data.flush_batch()
        expired = [v for key in due if (v := self.vbucket.data.newest.of_key(key)) is not None]
        for version in sorted(expired, key=lambda each: each.seqno):
            assert version.is_deleted
            assert version.seqno > before
            self.model.write(version.seqno, version.cas, version.key, True)

    def fork(self, how: str, amount: int) -> None:
        vbucket, high, base = self.vbucket, self.high, self.model.base
        old = vbucket.failover_log.entries
        if how == "crash":
            cut = vbucket.data.disk.persisted_seqno
            vbucket.crash(None)
            assert vbucket.data.disk.persisted_seqno == cut
        elif how == "lose":
            cut = max(base, high - amount)
            vbucket.crash(amount)
        else:
            cut = high
            vbucket.change(StateEvent.ORDERED_REPLICA)
            assert vbucket.failover_log.entries == old
            vbucket.change(StateEvent.ORDERED_ACTIVE)
        if self.compacted and self.high != cut:
            assert self.high == base or base < self.high < cut == high - amount
            cut = self.high
        self.model.fork(self.uuid, cut)
        self.record.follow(vbucket.failover_log, self.high)
        self.writer.rewind()
        assert self.high == cut
        newest = vbucket.failover_log.entries[0]
        assert (newest.vb_uuid, newest.seqno) == (self.uuid, cut)
        left = tuple(e for e in old if e.seqno <= cut)
        assert vbucket.failover_log.entries[1:] == left[: MAX_FAILOVER_ENTRIES - 1]

    def purge(self, amount: int) -> None:
        up_to = self.high - amount
        self.compacted = True
        self.vbucket.data.persistence.purge(max(0, up_to))


step = st.one_of(
    st.tuples(
        st.just("write"), st.sampled_from(KEYS), st.sampled_from(["set", "delete", "expiring"])
    ),
    st.tuples(st.just("write"), st.sampled_from(KEYS), st.sampled_from(["set", "delete"])),
    st.tuples(st.just("fork"), st.sampled_from(["crash", "lose", "state"]), st.integers(0, 9)),
    st.tuples(st.just("expire"), st.none(), st.none()),
    st.tuples(st.just("purge"), st.none(), st.integers(0, 4)),
)
shape = st.tuples(
    st.sampled_from([0, 7, 2**63]),
    st.integers(0, 4),
)


def _driven(sizes: tuple[int, int], steps: list[tuple[str, ...]]) -> Forking:
    forking = Forking(*sizes)
    for name, first, second in steps:
        match name:
            case "write":
                forking.write(first, second)  # type: ignore[arg-type]
            case "fork":
                forking.fork(first, second)  # type: ignore[arg-type]
            case "purge":
                forking.purge(second)  # type: ignore[arg-type]
            case "expire":
                forking.expire()
    return forking


def _seqnos_and_cas(documents: dict[bytes, Version]) -> Held:
    return {key: (document.seqno, document.cas) for key, document in documents.items()}


@given(shape, st.lists(step, min_size=15, max_size=40))
def test_every_branch_is_known_at_every_seqno(
    sizes: tuple[int, int], steps: list[tuple[str, ...]]
) -> None:
    forking = _driven(sizes, steps)
    model, record = forking.model, forking.record
    assert record.vb_uuids == tuple(model.branches)
    event(f"{len(model.branches)} branches")
    for uuid in model.branches:
        for seqno in range(model.base, model.high(uuid) + 2):
            told = _seqnos_and_cas(record.state_at(seqno, uuid))
            assert told == model.state(uuid, seqno)
    assert record.state_at(forking.high) == record.state_at(forking.high, forking.uuid)


@given(shape, st.lists(step, min_size=15, max_size=40))
def test_what_is_left_is_the_current_branch(
    sizes: tuple[int, int], steps: list[tuple[str, ...]]
) -> None:
    forking = _driven(sizes, steps)
    model, data = forking.model, forking.vbucket.data
    assert data.high_seqno == model.high(forking.uuid)
    for key in KEYS:
        newest = data.newest.of_key(key)
        events = [e for e in model.branches[forking.uuid] if e[2] == key]
        found = None if newest is None else (newest.seqno, newest.cas, key, newest.is_deleted)
        was_purged = found is None and events[-1:] and events[-1][0] <= data.disk.purge_seqno
        assert was_purged or found == (events[-1] if events else None)


@given(shape, st.lists(step, min_size=15, max_size=40), st.sampled_from(["document", "server"]))
def test_who_may_go_on_or_goes_back_holds_what_the_new_branch_holds(
    sizes: tuple[int, int], steps: list[tuple[str, ...]], rules: Rules
) -> None:
    """A client with the state of any branch that was ever streamed, complete at any seqno."""
    forking = _driven(sizes, steps)
    model, facts = forking.model, forking.vbucket.facts()
    for uuid in model.branches:
        for seqno in range(model.base + 1, model.high(uuid) + 1):
            verdict = judge(resuming(seqno, uuid, seqno, seqno), facts, rules)
            event(verdict.status.name)
            back = verdict.rollback_seqno if verdict.status is Status.ROLLBACK else seqno
            assert back is not None
            assert back <= seqno
            assert model.state(uuid, back) == model.state(forking.uuid, back)


@given(shape, st.lists(step, min_size=15, max_size=40))
def test_only_tombstones_are_purged_and_never_the_newest_item(
    sizes: tuple[int, int], steps: list[tuple[str, ...]]
) -> None:
    forking = _driven(sizes, steps)
    model, data = forking.model, forking.vbucket.data
    on_disk = data.disk.persisted_seqno
    shown: set[int] = set()
    with data.disk.scan(0) as scan:
        while (frames := scan.read(2**20)) is not None:
            shown |= set(frames.seqnos.tolist())
    events = [event for event in model.branches[forking.uuid] if event[0] <= on_disk]
    newest = {key: (seqno, deleted) for seqno, _, key, deleted in events}
    hidden = {seqno: deleted for seqno, deleted in newest.values() if seqno not in shown}
    assert shown <= {seqno for seqno, _ in newest.values()}
    assert all(hidden.values())
    assert on_disk not in hidden
    assert all(seqno <= data.disk.purge_seqno <= on_disk for seqno in hidden)
