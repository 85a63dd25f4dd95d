"""The slice of a forking log that an apply takes: every version exact, decided without Spark."""

import random
from collections.abc import Collection, Mapping, Sequence

import pytest

from dcp.errors import LakeError
from dcp.lake.apply.slice_rules import (
    may_have_rows,
    oldest_pending_round,
    row_ranges,
    slice_between,
)
from dcp.lake.change_log.collection_events import CollectionEvent
from dcp.lake.change_log.epochs import Fork
from dcp.lake.store.log_slice import Role, RowRange
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.vbucket_state import Restart, RestartReason, VbucketProgress
from dcp.protocol.position import Position
from tests.lake.forking_log import ForkingLog
from tests.lake.taken_back import taken_back
from tests.seeds import seeds


def state_at(
    seqno: int, *, vbucket: int = 0, epoch: int = 0, pending: int | None = None, data: int = 1
) -> VbucketProgress:
    return VbucketProgress(
        vbucket,
        epoch,
        Position.complete_at(7, seqno),
        first_pending_round=pending,
        last_data_round=data,
    )


@pytest.mark.parametrize("seed", seeds(15, soak_count=400))
def test_every_version_is_exact_over_forks(seed: int) -> None:
    log = ForkingLog(seed)
    choice = random.Random(seed)
    for _ in range(14):
        log.commit_round()
        if choice.random() < 0.5:
            log.apply(choice.randint(max(1, log.lake.round - 1), log.lake.round))
            older = range(1, len(log.lake.versions) - 1)
            if older and choice.random() < 0.15:
                log.lake.unreadable.add(choice.choice(older))
            log.require_exact()
    log.apply(log.lake.round)
    log.require_exact()
    audit = log.lake.undone
    audited = audit.rows('"round", vbucket, key', "true") if audit.exists() else []
    assert {tuple(row.values()) for row in audited} == taken_back(log)
    assert len(audited) == len(taken_back(log)), "each once"


def test_only_vbuckets_that_moved_and_can_have_rows_are_touched() -> None:
    old = state_at(10)
    assert not may_have_rows(old, state_at(10, data=9), 5)  # did not move
    assert may_have_rows(old, state_at(20, data=9), 5)
    assert not may_have_rows(old, state_at(20, data=1), 5)  # moved past nothing for us
    waiting = state_at(10, pending=2)
    assert may_have_rows(waiting, state_at(20, data=1), 5)  # rows of an old round became complete


def test_rows_that_wait_are_in_the_log_from_the_oldest_round_of_any_of_them() -> None:
    waiting = [state_at(10, pending=round_number) for round_number in (None, 4, 2, None)]
    assert oldest_pending_round(waiting, 9) == 2
    assert oldest_pending_round(waiting[:1], 9) == 9
    assert oldest_pending_round(waiting, 1) == 1
    assert oldest_pending_round([], 6) == 6


MOST = 2**64 - 1
FRESH, KEPT, UNDONE = Role.FRESH, Role.KEPT, Role.UNDONE


@pytest.mark.parametrize(
    ("base", "old", "new", "forks", "expected"),
    [
        pytest.param((0, 0), (0, 0), (0, MOST), [], [(0, 0, MOST, FRESH)], id="from nothing"),
        pytest.param((0, 10), (0, 10), (0, 10), [], [], id="nothing new"),
        pytest.param(
            (0, 10),
            (0, 10),
            (2, 30),
            [(1, 12), (2, 20)],
            [(0, 10, 12, FRESH), (1, 10, 20, FRESH), (2, 10, 30, FRESH)],
            id="forks of rows that were never published",
        ),
        pytest.param(
            (0, 10),
            (0, 25),
            (1, 14),
            [(1, 12)],
            [(0, 10, 12, KEPT), (0, 12, 25, UNDONE), (1, 10, 14, FRESH)],
            id="a new branch that is lower than the dead one",
        ),
        pytest.param(
            (0, 12),
            (0, 25),
            (1, 25),
            [(1, 12)],
            [(0, 12, 25, UNDONE), (1, 12, 25, FRESH)],
            id="the same seqno on two branches",
        ),
        pytest.param(
            (0, 5),
            (1, 40),
            (2, 10),
            [(1, 20), (2, 8)],
            [(0, 5, 8, KEPT), (0, 8, 20, UNDONE), (1, 5, 8, KEPT), (1, 8, 40, UNDONE),
             (2, 5, 10, FRESH)],
            id="what was dead already at the old state is not undone again",
        ),
        pytest.param(
            (0, 5),
            (0, 40),
            (3, 6),
            [(1, 20), (2, 30), (3, 5)],
            [(0, 5, 40, UNDONE), (3, 5, 6, FRESH)],
            id="several rollbacks between two applies, the last one the deepest",
        ),
    ],
)  # fmt: skip
def test_roles(
    base: tuple[int, int],
    old: tuple[int, int],
    new: tuple[int, int],
    forks: list[tuple[int, int]],
    expected: list[tuple[int, int, int, Role]],
) -> None:
    at, held, to = (state_at(seqno, vbucket=4, epoch=epoch) for epoch, seqno in (base, old, new))
    found = row_ranges(at, held, to, [Fork(4, epoch, seqno, 1) for epoch, seqno in forks])
    assert found == [RowRange(4, *each) for each in expected]


def test_a_log_that_lacks_a_fork_or_goes_back_is_refused() -> None:
    log = ForkingLog(1)
    while log.lake.round == 0 or log.apply() is None:
        log.commit_round(fork_chance=0)
    states = log.lake.states
    log.append([], [state.restarted(Restart(RestartReason.RESYNC)) for state in states.values()])
    with pytest.raises(LakeError, match=r"vbucket 0 is in epoch 1 .* dcplake resync --vbuckets 0"):
        log.log_slice(log.lake.round)
    log.append([], map(VbucketProgress.beginning, states))
    with pytest.raises(LakeError, match="went back from complete seqno"):
        log.log_slice(log.lake.round)


class CountedFacts:
    """Facts of a lake whose vbuckets all went on from round 1 to round 2; counts what is asked."""

    def __init__(self, vbuckets: int) -> None:
        self.asked: list[str] = []
        self._vbuckets = range(vbuckets)

    @property
    def cleaned_round(self) -> int:
        self.asked.append("cleaned_round")
        return 0

    def states(self, rounds: Collection[int]) -> Mapping[int, Mapping[int, VbucketProgress]]:
        self.asked.append("states")
        return {
            number: {vb: state_at(10 * number, vbucket=vb, data=number) for vb in self._vbuckets}
            for number in rounds
        }

    def forks(self, after_round: int, to_round: int, vbuckets: Collection[int]) -> Sequence[Fork]:
        self.asked.append("forks")
        return ()

    def collection_events(
        self, from_round: int, to_round: int, vbuckets: Collection[int]
    ) -> Sequence[CollectionEvent]:
        self.asked.append("collection_events")
        return ()

    def older_versions(self) -> Sequence[AppliedVersion]:
        self.asked.append("older_versions")
        return ()

    def may_be_readable(self, version: int, vbucket: int) -> bool:
        self.asked.append("may_be_readable")
        return True


def test_a_decision_asks_the_lake_no_more_for_many_vbuckets_than_for_one() -> None:
    """Each question is a statement on Spark; a bucket has 1,024 vbuckets."""
    one, many = CountedFacts(1), CountedFacts(1024)
    for facts, count in ((one, 1), (many, 1024)):
        log_slice = slice_between(AppliedVersion("docs", 1, 0, 1, 1), 2, facts)
        assert len(log_slice.ranges) == count
    assert many.asked == one.asked
    assert many.asked.count("cleaned_round") == 1
