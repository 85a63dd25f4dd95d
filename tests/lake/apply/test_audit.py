"""The audit of rollbacks: the keys that it lists, whoever writes it."""

from dataclasses import replace
from typing import Any

import pytest

from dcp.lake.apply import audit
from dcp.lake.apply.audit import write_audit
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import MergePlan, RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import replica_status
from dcp.lake.run.repair import repair
from dcp.lake.store.log_slice import REPLACED
from dcp.lake.tables.lake_tables import DOCS
from dcp.lake.tables.schema import RowKind, is_kind
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog
from tests.lake.forking_log import ForkingLog
from tests.lake.watched_lake import Row

NO_ROWS = RowBudget(0, -1)
"""Lets an audit read its rows by one query over the tables."""


class Scripted:
    """A lake of one vbucket whose rounds a test writes down."""

    def __init__(self, *, is_audited_at_once: bool) -> None:
        self.log = ForkingLog(1, vbuckets=1)
        self._is_audited_at_once = is_audited_at_once
        self._plan: MergePlan | None = None
        self._state = LakeVbucketState.beginning(0)
        self._uuid = 1
        self._cas = 0

    def round(
        self, *rows: Row, fork: int | None = None, apply: bool = True, audits: bool = True
    ) -> None:
        """Commit a round, in a new epoch if it has a fork; its last row ends a snapshot."""
        number, told = self.log.lake.round + 1, []
        if fork is not None:
            self._uuid += 1
            restart = Restart(0, RestartReason.ROLLBACK, fork, self._uuid)
            self._state = self._state.restarted(restart)
            told.append({"kind": "rollback", "seqno": fork, "detail": "rollback"})
        if rows:
            seqno = rows[-1]["seqno"]
            failover_log = FailoverLog((FailoverEntry(self._uuid, 0),))
            self._state = self._state.advanced(
                number,
                Position.complete_at(self._uuid, seqno),
                brought_rows=True,
                failover_log=failover_log,
            )
            if any(row["kind"] == "system_event" for row in rows):
                self._state = replace(self._state, last_collection_round=number)
            told += [*rows, {"kind": "complete", "seqno": seqno}]
        common = {"round": number, "epoch": self._state.epoch, "vbucket": 0}
        self.log.append([{**row, **common} for row in told], [self._state])
        if apply:
            self._plan = plan_merge(self.log.tables, DOCS, number)
            assert self._plan is not None
            run_apply(self.log.tables, self._plan, "w")
        if audits:
            self.audit()

    def audit(self) -> None:
        """Write the audit of the newest apply: by its driver, or by one that lacks its plan."""
        tables = self.log.tables if self._is_audited_at_once else self.log.lake.open()
        plan = self._plan if self._is_audited_at_once else None
        write_audit(tables, DOCS, replica_status(tables, DOCS), plan)

    def write(self, seqno: int, key: str) -> Row:
        return self._row(seqno, key, "mutation") | {"value": b"{}"}

    def delete(self, seqno: int, key: str) -> Row:
        return self._row(seqno, key, "deletion")

    @staticmethod
    def flush(seqno: int) -> Row:
        event = '{"event": "BEGIN_COLLECTION", "collection_id": 0}'
        return {"kind": "system_event", "seqno": seqno, "collection_id": 0, "detail": event}

    def _row(self, seqno: int, key: str, kind: str) -> Row:
        self._cas += 1
        facts = {"seqno": seqno, "key": key, "kind": kind, "cas": self._cas}
        return {**facts, "collection_id": 0, "datatype": 1, "vb_uuid": self._uuid}

    def audited(self) -> dict[str, tuple[int | None, int | None]]:
        """By key, the seqnos before and after, of the newest apply's audit."""
        rows: list[dict[str, Any]] = self.log.lake.undone.kept.newest.rows.to_pylist()
        newest = self.log.lake.versions[-1].current.version
        return {
            row["key"]: (_seqno(row["before"]), _seqno(row["after"]))
            for row in rows
            if row["version"] == newest
        }


def _seqno(side: Row | None) -> int | None:
    return None if side is None else int(side["seqno"])


@pytest.fixture(params=["its own driver", "a later driver"])
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["few rows", "many rows"])
def lake(request: pytest.FixtureRequest, by: str, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    if request.param == "many rows":
        monkeypatch.setattr(audit, "ROW_BUDGET", NO_ROWS)
    return Scripted(is_audited_at_once=by == "its own driver")


def test_a_deletion_of_an_older_epoch_is_undone_by_a_write_of_its_key(lake: Scripted) -> None:
    """The table stood in epoch 1, the deletion was published in epoch 0, above the new fork."""
    lake.round(lake.write(4, "a"), lake.write(5, "b"))
    lake.round(lake.delete(8, "a"), apply=False)
    lake.round(lake.write(10, "b"), fork=8)
    lake.round(lake.write(6, "a"), fork=5)
    assert lake.audited() == {"a": (None, 6), "b": (10, 5)}


def test_a_key_that_only_the_new_branch_has_is_not_taken_back(lake: Scripted) -> None:
    lake.round(lake.write(1, "a"))
    lake.round(lake.write(2, "b"), lake.delete(3, "b"))
    lake.round(lake.write(2, "b"), lake.write(3, "new"), fork=1)
    assert lake.audited() == {"b": (None, 2)}


def test_rows_that_a_flush_ends_are_not_taken_back(lake: Scripted) -> None:
    lake.round(lake.write(1, "z"), lake.write(2, "b"))
    lake.round(lake.write(3, "a"), lake.write(4, "c"), lake.delete(5, "b"))
    lake.round(lake.flush(3), lake.write(4, "b"), fork=2)
    assert lake.log.lake.versions[-1].cleared == (0,)
    assert lake.audited() == {"a": (3, None), "b": (None, 4), "c": (4, None)}


def flush_and_undo(lake: Scripted) -> None:
    lake.round(lake.write(1, "a"), lake.write(2, "b"))
    lake.round(lake.write(3, "e"), lake.flush(4), lake.write(5, "c"))
    lake.round(lake.write(4, "b"), lake.write(5, "new"), fork=3, audits=False)


def test_an_undone_flush_takes_back_the_end_of_each_older_key(lake: Scripted) -> None:
    flush_and_undo(lake)
    lake.audit()
    expected = {"a": (None, 1), "b": (None, 4), "c": (5, None), "e": (None, 3)}
    assert lake.audited() == expected


def test_without_the_version_that_returns_new_keys_count_too(lake: Scripted) -> None:
    flush_and_undo(lake)
    lake.log.lake.unreadable.add(lake.log.lake.versions[-1].undone[0].version)
    lake.audit()
    expected = {"a": (None, 1), "b": (None, 4), "c": (5, None), "e": (None, 3), "new": (None, 5)}
    assert lake.audited() == expected


@pytest.mark.parametrize(("unreadable", "restored"), [({2}, 1), ({1, 2}, 0)])
def test_a_later_driver_goes_back_to_the_version_that_the_dead_one_could_read(
    lake: Scripted, unreadable: set[int], restored: int
) -> None:
    lake.round(lake.write(1, "a"))
    lake.round(lake.write(2, "b"))
    lake.round(lake.flush(3), lake.write(4, "c"))
    lake.log.lake.unreadable.update(unreadable)
    lake.round(lake.write(3, "new"), fork=2, audits=False)
    assert lake.log.lake.versions[-1].undone[0].version == restored
    lake.log.lake.unreadable.clear()
    lake.audit()
    assert lake.audited() == {"a": (None, 1), "b": (None, 2), "c": (4, None)}


def test_a_replaced_vbucket_tells_by_the_seqnos_that_had_been_read(lake: Scripted) -> None:
    lake.round(*(lake.write(seqno, key) for seqno, key in [(3, "a"), (4, "u"), (5, "b"), (6, "c")]))
    new = [(4, "a"), (5, "d"), (9, "u"), (10, "new")]
    lake.round(*(lake.write(seqno, key) for seqno, key in new), fork=0)
    assert lake.log.lake.versions[-1].undone[0].version == REPLACED
    assert lake.audited() == {"a": (3, 4), "b": (5, None), "c": (6, None), "d": (None, 5)}


def test_the_rows_before_the_apply_are_gone(
    lake: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    lake.round(lake.write(1, "a"))
    lake.round(lake.write(2, "b"))
    lake.round(lake.write(2, "c"), fork=1, audits=False)
    version = lake.log.lake.versions[-1].current.version
    lake.log.lake.unreadable.add(version - 1)
    lake.audit()
    assert not lake.log.lake.undone.rows("key", "true")
    assert f"table undone may lack keys that version {version} of docs took back" in caplog.text


def test_the_positions_before_the_apply_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    lake = Scripted(is_audited_at_once=False)
    lake.round(lake.write(1, "a"))
    lake.round(lake.write(2, "b"))
    lake.round(lake.write(2, "c"), fork=1, audits=False)
    lake.log.tables.changes.delete(f"round = 2 AND {is_kind(RowKind.POSITION)}", {})
    lake.log.tables.remembered_rounds.clear()
    lake.audit()
    assert not lake.log.lake.undone.exists()
    assert "round 2" in caplog.text


def test_an_audit_is_of_the_newest_apply_whoever_writes_it() -> None:
    """A driver stands still after its apply; meanwhile another one audits it and applies again."""
    scripted = Scripted(is_audited_at_once=True)
    scripted.round(scripted.write(1, "a"), scripted.write(2, "b"))
    scripted.round(scripted.write(3, "c"))
    scripted.round(scripted.write(3, "d"), fork=2, audits=False)
    plan, other = scripted._plan, scripted.log.lake.open()
    write_audit(other, DOCS, replica_status(other, DOCS))
    scripted.round(scripted.write(2, "e"), fork=1, audits=False)
    tables = scripted.log.tables
    write_audit(tables, DOCS, replica_status(tables, DOCS), plan)
    assert scripted.audited() == {"b": (2, None), "d": (3, None)}


@pytest.mark.parametrize("kind", [RowKind.POSITION, RowKind.ROLLBACK])
@pytest.mark.parametrize("is_repaired", [False, True])
def test_a_damaged_log_stops_no_driver_for_an_audit(
    caplog: pytest.LogCaptureFixture, kind: RowKind, is_repaired: bool
) -> None:
    """Else no driver could start, even after the resync that the refusal of the log advises."""
    scripted = Scripted(is_audited_at_once=False)
    scripted.round(scripted.write(1, "a"))
    scripted.round(scripted.write(2, "b"))
    scripted.round(scripted.write(2, "c"), fork=1, audits=False)
    scripted.log.tables.changes.delete(is_kind(kind), {})
    tables = scripted.log.lake.open()
    if is_repaired:
        repair(tables, "w")
        tables = scripted.log.lake.open()
    write_audit(tables, DOCS, replica_status(tables, DOCS))
    assert "may lack keys that version 3 of docs took back" in caplog.text
