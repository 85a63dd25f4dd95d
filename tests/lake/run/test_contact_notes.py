"""The note of a driver's last contact: what a reader in another process learns from it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dcp.lake.change_log.last_contact import MINUTES_KEPT, LastContact, Minute, last_contact
from dcp.lake.config.settings import RoundSettings
from dcp.lake.monitor.lake_figures import age_lines
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.contact_notes import ContactNotes
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.round_record import Outcome, VbucketReport
from tests.lake.memory_store import MemoryStore

BEGIN = datetime(2026, 1, 31, 10, tzinfo=UTC)
NEXT_SECONDS = RoundSettings().stall_seconds + 60


class Clock:
    now = BEGIN

    def __call__(self) -> datetime:
        return self.now

    def passes(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


class CountingStore(MemoryStore):
    """Counts notes, and may refuse them."""

    count = 0
    refuses = False

    def note(self, name: str, content: bytes) -> None:
        self.count += 1
        if self.refuses:
            raise OSError("the disk is full")
        super().note(name, content)


def found(store: MemoryStore, round_at: datetime | None = None, behind: int = 0) -> LastContact:
    contact = last_contact(store, round_at, behind)
    assert contact is not None
    return contact


def test_a_look_is_noted_once_a_minute_and_a_driver_that_died_is_overdue() -> None:
    store, clock = CountingStore(), Clock()
    notes = ContactNotes(store, RoundSettings(), clock)
    assert last_contact(store, None, 0) is None
    for _ in range(24):
        notes.contacted(0)
        clock.passes(5)
    assert store.count == 2, "two minutes"
    contact = found(store)
    assert contact.time == BEGIN + timedelta(seconds=60)
    assert not contact.is_overdue(contact.time + timedelta(seconds=NEXT_SECONDS))
    late = contact.time + timedelta(seconds=NEXT_SECONDS + 1)
    assert contact.is_overdue(late)
    soon = contact.time + timedelta(seconds=12)
    assert age_lines(late, contact, None, None)[0] == "  no contact with the cluster for 3 min"
    assert age_lines(soon, contact, None, None) == ["  last contact with the cluster 12 s ago"]


def test_a_driver_that_ends_notes_its_last_contact_and_no_driver_without_contact_does() -> None:
    store, clock = CountingStore(), Clock()
    notes = ContactNotes(store, RoundSettings(), clock)
    notes.ended()
    assert last_contact(store, None, 0) is None
    notes.contacted(7)
    notes.contacted(0)
    assert found(store).behind == 7
    later = clock.passes(30)
    notes.contacted(0)
    notes.ended()
    contact = found(store)
    assert (contact.time, contact.behind) == (later, 0)
    assert contact.is_overdue(later + timedelta(seconds=1)), "at once: nobody asks the cluster"


def test_a_driver_that_lost_leaves_the_note_of_the_one_that_won() -> None:
    store, clock = MemoryStore(), Clock()
    notes = ContactNotes(store, RoundSettings(), clock)
    notes.contacted(0)
    [(name, content)] = store.notes.items()
    store.notes[name] = json.dumps(json.loads(content) | {"machine": "elsewhere"}).encode()
    notes.ended()
    assert not found(store).is_overdue(clock.passes(1))


def test_a_process_of_this_machine_that_is_gone_is_overdue_at_once() -> None:
    store, clock = MemoryStore(), Clock()
    ContactNotes(store, RoundSettings(), clock).contacted(0)
    soon = clock.passes(1)
    assert not found(store).is_overdue(soon)
    [(name, content)] = store.notes.items()
    told = json.loads(content)
    for pid in (2**40, 2**22 + 1):
        told["pid"] = pid
        store.notes[name] = json.dumps(told).encode()
        assert found(store).is_overdue(soon)
    store.notes[name] = json.dumps(told | {"machine": "elsewhere"}).encode()
    assert not found(store).is_overdue(soon), "another machine's processes are not known here"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"time": 1}', b"\xff"])
def test_without_a_note_that_can_be_read_the_newest_round_tells(content: bytes) -> None:
    store, clock = CountingStore(), Clock()
    store.refuses = True
    ContactNotes(store, RoundSettings(), clock).contacted(0)
    assert last_contact(store, None, 0) is None
    store.notes["_dcplake_last_contact.json"] = content
    assert found(store, BEGIN, 9) == LastContact(BEGIN, NEXT_SECONDS, 9)


def test_a_round_that_is_newer_than_the_note_is_a_look_and_has_read_what_was_to_be_read() -> None:
    store, clock = MemoryStore(), Clock()
    ContactNotes(store, RoundSettings(), clock).contacted(3)
    noted, later = found(store), BEGIN + timedelta(seconds=40)
    told = "  last contact with the cluster 40 s ago; 3 seqnos were to be read then"
    assert age_lines(later, noted, None, None) == [told]
    left = found(store, later, 2)
    assert left == replace(noted, time=later, behind=2), "the round left these to the next one"
    by_round = found(store, later)
    assert by_round == replace(noted, time=later, behind=0)
    told = "  last contact with the cluster 0 s ago, last round 0 s ago"
    assert age_lines(later, by_round, later, None) == [told]
    assert found(store, BEGIN - timedelta(seconds=9)) == noted


def report(round_number: int, *vbuckets: VbucketReport) -> RoundReport:
    return RoundReport(round_number, round_number, 4.0, vbuckets, ())


def applied(to_round: int) -> AppliedVersion:
    return AppliedVersion("docs", to_round, to_round - 1, to_round, to_round)


def test_the_last_hours_are_told_minute_by_minute_and_outlive_their_driver() -> None:
    store, clock = MemoryStore(), Clock()
    notes = ContactNotes(store, RoundSettings(), clock)
    notes.contacted(0)
    reached = VbucketReport(0, Outcome.REACHED, 10, 900, window_full=0.5, bottleneck="spark")
    notes.committed(report(1, reached))
    clock.passes(20)
    notes.committed(report(2, replace(reached, rows=5, bottleneck="")))
    clock.passes(10)
    notes.applied([applied(2)], 3.5)
    clock.passes(60)
    notes.contacted(0)
    begin = int(BEGIN.timestamp()) // 60
    full = {"spark": 2.0, "": 2.0}
    assert found(store).minutes == (
        Minute(begin, 2, 15, 1800, 8.0, 4.0, 3.5, 30.0, full=full),
        Minute(begin + 1),
    )
    clock.passes(3600)
    following = ContactNotes(store, RoundSettings(), clock)
    following.contacted(0)
    minutes = found(store).minutes
    assert [each.minute - begin for each in minutes] == [0, 1, 61], "nobody asked for an hour"
    for _ in range(MINUTES_KEPT):
        clock.passes(60)
        following.contacted(0)
    assert len(found(store).minutes) == MINUTES_KEPT
    [content] = store.notes.values()
    assert len(content) < 10_000, "a quiet minute is a number"


def test_a_rollback_is_noted_at_once_and_a_change_that_waits_lags() -> None:
    store, clock = CountingStore(), Clock()
    notes = ContactNotes(store, RoundSettings(), clock)
    notes.contacted(0)
    ordered = [VbucketReport(vb, Outcome.ROLLBACK) for vb in (3, 4)]
    notes.committed(report(1, *ordered))
    assert store.count == 2
    [minute] = found(store).minutes
    assert (minute.rollbacks, minute.rows) == (2, 0)
    notes.committed(report(2, VbucketReport(3, Outcome.REACHED, 1)))
    clock.passes(120)
    notes.contacted(0)
    assert found(store).minutes[-1].lag == 120
    notes.applied([applied(2)], 1.0)
    clock.passes(60)
    notes.contacted(0)
    assert found(store).minutes[-1].lag == 0
    only_receives = ContactNotes(CountingStore(), RoundSettings(), clock, applies=False)
    only_receives.contacted(0)
    only_receives.committed(report(3, VbucketReport(3, Outcome.REACHED, 1)))
    assert not only_receives._pending, "somebody else applies"
