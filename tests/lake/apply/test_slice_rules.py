"""The slice of a forking log that an apply takes: every version exact, decided without Spark."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dcp.errors import LakeError
from dcp.lake.apply import audit
from dcp.lake.apply.slice_reader import SliceReader
from dcp.lake.apply.slice_rules import (
    LogFacts,
    decide_slice,
    may_have_rows,
    oldest_incomplete_round,
    restored_versions_among,
    rounds_before_forks,
    rounds_of_events,
    row_ranges,
    vbuckets_to_take_back,
    vbuckets_with_kept_rows,
)
from dcp.lake.change_log.collection_events import CollectionEvent
from dcp.lake.change_log.epochs import Fork
from dcp.lake.store.log_slice import REPLACED, LogSlice, Role, RowRange, Undo
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason
from dcp.protocol.position import Position
from tests.lake.apply.test_audit import NO_ROWS
from tests.lake.forking_log import ForkingLog
from tests.lake.taken_back import taken_back
from tests.seeds import seeds


def state_at(
    seqno: int, *, vbucket: int = 0, epoch: int = 0, incomplete: int | None = None, data: int = 1
) -> LakeVbucketState:
    return LakeVbucketState(
        vbucket,
        epoch,
        Position.complete_at(7, seqno),
        first_incomplete_round=incomplete,
        last_data_round=data,
    )


@pytest.mark.parametrize("seed", seeds(15, soak_count=400))
def test_every_version_is_exact_over_forks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(audit, "ROW_BUDGET", NO_ROWS)
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
    undone = log.lake.undone
    audited = undone.rows('"round", vbucket, key', "true") if undone.exists() else []
    assert {tuple(row.values()) for row in audited} == taken_back(log)
    assert len(audited) == len(taken_back(log)), "each once"


def test_only_vbuckets_that_moved_and_can_have_rows_are_touched() -> None:
    old = state_at(10)
    assert not may_have_rows(old, state_at(10, data=9), 5)  # did not move
    assert may_have_rows(old, state_at(20, data=9), 5)
    assert not may_have_rows(old, state_at(20, data=1), 5)  # moved past nothing for us
    waiting = state_at(10, incomplete=2)
    assert may_have_rows(waiting, state_at(20, data=1), 5)  # rows of an old round became complete


def test_rows_that_wait_are_in_the_log_from_the_oldest_round_of_any_of_them() -> None:
    waiting = [state_at(10, incomplete=round_number) for round_number in (None, 4, 2, None)]
    assert oldest_incomplete_round(waiting, 9) == 2
    assert oldest_incomplete_round(waiting[:1], 9) == 9
    assert oldest_incomplete_round(waiting, 1) == 1
    assert oldest_incomplete_round([], 6) == 6


MOST = 2**64 - 1
FRESH, KEPT, UNDONE = Role.FRESH, Role.KEPT, Role.UNDONE


@pytest.mark.parametrize(
    ("start", "old", "new", "forks", "expected"),
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
    start: tuple[int, int],
    old: tuple[int, int],
    new: tuple[int, int],
    forks: list[tuple[int, int]],
    expected: list[tuple[int, int, int, Role]],
) -> None:
    at, current, to = (
        state_at(seqno, vbucket=4, epoch=epoch) for epoch, seqno in (start, old, new)
    )
    found = row_ranges(at, current, to, [Fork(epoch, seqno, 1) for epoch, seqno in forks])
    assert found == [RowRange(4, *each) for each in expected]


def test_a_log_that_lacks_a_fork_or_goes_back_is_refused() -> None:
    log = ForkingLog(1)
    while log.lake.round == 0 or log.apply() is None:
        log.commit_round(fork_chance=0)
    states = log.lake.states
    resyncs = [Restart(vbucket, RestartReason.RESYNC) for vbucket in states]
    log.append([], [states[each.vbucket].restarted(each) for each in resyncs])
    with pytest.raises(LakeError, match=r"vbucket 0 is in epoch 1 .* dcplake resync --vbuckets 0"):
        log.log_slice(log.lake.round)
    log.append([], [*map(LakeVbucketState.beginning, states)])
    with pytest.raises(LakeError, match="went back from complete seqno"):
        log.log_slice(log.lake.round)


def state_of(vbucket: int, epoch: int, seqno: int, **more: Any) -> LakeVbucketState:
    made = state_at(seqno, vbucket=vbucket, epoch=epoch)
    return replace(made, last_data_round=2, **more)


CURRENT = AppliedVersion("docs", 5, 0, 1, 1)
OLDER = AppliedVersion("docs", 3, 0, 0, 0)
"""As of round 0: every vbucket at its beginning."""


def facts_of(
    new: LakeVbucketState, *forks: Fork, events: Sequence[CollectionEvent] = (), **more: Any
) -> LogFacts:
    """Return the facts of one vbucket, held at seqno 10 of round 1, for an apply to round 2."""
    states = {0: {}, 1: {0: state_at(10)}, 2: {0: new}}
    facts = LogFacts(CURRENT, 2, states=states, **more)
    return facts.with_forks({0: forks}).with_collection_events(events)


def slice_of(*ranges: RowRange, **more: Any) -> LogSlice:
    return LogSlice(ranges, **({"first_round": 2, "to_round": 2, "log_from_round": 2} | more))


BELOW, ABOVE, ANEW = Fork(1, 5, 2), Fork(1, 12, 2), Fork(1, 0, 2)
WENT_ON, FORKED = state_of(0, 0, 20), state_of(0, 1, 20)
INCOMPLETE = replace(FORKED, position=Position(7, 20, 0, 30, 0))
FLUSH = CollectionEvent(0, 0, 0, 15, 2)
KEEPS = CollectionEvent(0, 0, 1, 15, 2, ends_documents=False)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(facts_of(state_at(10)), slice_of(), id="stands still"),
        pytest.param(facts_of(WENT_ON), slice_of(RowRange(0, 0, 10, 20)), id="goes on"),
        pytest.param(
            facts_of(WENT_ON, cleaned_round=2), slice_of(stale={0: 1}), id="its rows were cleaned"
        ),
        pytest.param(
            facts_of(WENT_ON, events=[FLUSH]),
            slice_of(RowRange(0, 0, 15, 20), cleared=(0,)),
            id="is flushed",
        ),
        pytest.param(
            facts_of(FORKED, ABOVE),
            slice_of(RowRange(0, 0, 10, 12), RowRange(0, 1, 10, 20)),
            id="forks above the current seqno",
        ),
        pytest.param(
            facts_of(FORKED, BELOW, restored_versions={0: OLDER}),
            slice_of(
                RowRange(0, 0, 0, 5, Role.KEPT),
                RowRange(0, 0, 5, 10, Role.UNDONE),
                RowRange(0, 1, 0, 20),
                first_round=1,
                undone=(Undo(0, 3, 5),),
            ),
            id="goes back to an older version",
        ),
        pytest.param(
            facts_of(FORKED, BELOW, restored_versions={0: BEGINNING}, cleaned_round=1),
            slice_of(stale={0: 1}),
            id="has no version to restore, and the log is not whole",
        ),
        pytest.param(
            facts_of(FORKED, ANEW),
            slice_of(RowRange(0, 1, 0, 20), undone=(Undo(0, REPLACED, 0),), begins_anew=True),
            id="begins anew and is whole",
        ),
        pytest.param(
            facts_of(INCOMPLETE, ANEW),
            slice_of(stale={0: 1}, begins_anew=True),
            id="begins anew and is not whole",
        ),
        pytest.param(
            facts_of(FORKED, ANEW, events=[KEEPS]),
            slice_of(RowRange(0, 1, 0, 20), begins_anew=True),
            id="begins anew and keeps the rows of a dropped collection",
        ),
    ],
)
def test_the_slice_of_a_vbucket(facts: LogFacts, expected: LogSlice) -> None:
    assert decide_slice(facts) == expected


@pytest.mark.parametrize(
    ("facts", "taken_back"),
    [
        (facts_of(WENT_ON), ()),
        (facts_of(FORKED, ABOVE), ()),
        (facts_of(FORKED, BELOW), (0,)),
        (facts_of(FORKED, ANEW), ()),
    ],
)
def test_a_fork_below_the_held_seqno_takes_a_vbucket_back(
    facts: LogFacts, taken_back: tuple[int, ...]
) -> None:
    assert vbuckets_to_take_back(facts) == taken_back


def version_at(number: int, seqno: int) -> tuple[AppliedVersion, LakeVbucketState]:
    return AppliedVersion("docs", 10 + number, 0, number, number), state_at(seqno)


@pytest.mark.parametrize(
    ("seqnos", "unreadable", "restored"),
    [
        ({4: 4}, set(), 14),
        ({4: 6, 3: 5}, set(), 13),  # the fork is at 5
        ({4: 6}, set(), None),
        ({9: 3, 4: 4}, set(), 14),  # of a later round, from before a RESTORE
        ({4: 4, 3: 3}, {(14, 0)}, 13),
        ({4: 4, 3: 3}, {(14, 1)}, 14),
        ({4: 4, 3: 3, 2: 2, 1: 1}, {(14, 0), (13, 0), (12, 0)}, BEGINNING.version),
        ({4: 4, 3: 3}, {(14, 0), (13, 0)}, None),
    ],
)
def test_the_restored_version_is_the_newest_readable_one_on_the_live_branch(
    seqnos: dict[int, int], unreadable: set[tuple[int, int]], restored: int | None
) -> None:
    versions = [version_at(number, seqno) for number, seqno in seqnos.items()]
    current, current_state = version_at(8, 10)
    states = {each.to_round: {0: state} for each, state in [*versions, (current, current_state)]}
    facts = LogFacts(
        current, 12, states=states | {12: {0: FORKED}}, unreadable=unreadable
    ).with_forks({0: [Fork(1, 5, 11)]})
    older = [each for each, _ in versions]
    found = restored_versions_among(facts, [0], older)
    assert {vb: each.version for vb, each in found.items()} == (
        {} if restored is None else {0: restored}
    )
    ended = restored_versions_among(facts, [0], [*older, BEGINNING])
    assert ended == (found or {0: BEGINNING})


def test_the_facts_that_the_rules_ask_for() -> None:
    assert rounds_before_forks(facts_of(WENT_ON)) == {}
    assert rounds_before_forks(facts_of(FORKED)) == {0: 1}
    assert rounds_of_events(facts_of(WENT_ON), {0: CURRENT}) == {}
    flushed = facts_of(replace(WENT_ON, last_collection_round=2))
    assert rounds_of_events(flushed, {0: CURRENT}) == {0: 2}
    assert rounds_of_events(flushed, {0: OLDER}) == {0: 1}
    anew = facts_of(replace(FORKED, last_collection_round=1), ANEW)
    assert rounds_of_events(anew, {0: CURRENT}) == {0: 1}
    assert vbuckets_with_kept_rows(anew) == ()
    assert vbuckets_with_kept_rows(facts_of(FORKED, ANEW, events=[KEEPS])) == (0,)
    assert vbuckets_with_kept_rows(facts_of(INCOMPLETE, ANEW, events=[KEEPS])) == ()
    assert vbuckets_with_kept_rows(facts_of(FORKED, ABOVE, events=[KEEPS])) == ()


def test_a_slice_asks_the_lake_no_more_for_many_vbuckets_than_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each question is a statement on Spark; a bucket has 1,024 vbuckets."""
    asked: list[str] = []

    def answer(name: str, found: Callable[..., Any]) -> None:
        def counted(*given: Any) -> Any:
            asked.append(name)
            return found(*given)

        monkeypatch.setattr(f"dcp.lake.apply.slice_reader.{name}", counted)

    def records(vbuckets: int, rounds: Iterable[int]) -> dict[int, Any]:
        return {
            number: SimpleNamespace(
                states={
                    vb: state_at(10 * number, vbucket=vb, data=number) for vb in range(vbuckets)
                }
            )
            for number in rounds
        }

    answer("cleaned_round", lambda *_: 0)
    answer("round_records", records)
    for name in ("forks_between", "collection_events", "rounds_left", "history"):
        answer(name, lambda *_: {})
    given: Any = SimpleNamespace(collection_id=0)
    counts = []
    for vbuckets in (1, 1024):
        lake: Any = vbuckets
        log_slice = SliceReader(lake, given, given).slice_between(CURRENT, 2)
        assert len(log_slice.ranges) == vbuckets
        counts.append(list(asked))
        asked.clear()
    assert counts == [["cleaned_round", "round_records"]] * 2
