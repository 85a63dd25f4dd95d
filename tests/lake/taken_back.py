"""What the applies of a `ForkingLog` took back, by the rule of the audit, without its SQL."""

from collections.abc import Iterable
from itertools import pairwise

from dcp.lake.store.log_slice import Undo
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.schema import ITEM_KINDS
from tests.lake.forking_log import ForkingLog
from tests.lake.watched_lake import Place, Row, Version


def published(log: ForkingLog, rows: Iterable[Row], current: AppliedVersion, vb: int) -> list[Row]:
    """The rows of a vbucket that were live and complete in a version, documents and flushes."""
    number = current.round_of(vb)
    own = [row for row in rows if row["vbucket"] == vb and row["round"] <= number]
    forks = [row for row in own if row["kind"] == "rollback"]
    complete = log.lake.states_at[number][vb].complete_seqno if number else 0
    return [
        row
        for row in own
        if row["kind"] in (*ITEM_KINDS, "system_event")
        and row["seqno"] <= complete
        and all(row["seqno"] <= f["seqno"] for f in forks if f["epoch"] > row["epoch"])
    ]


def undone_places(
    log: ForkingLog, rows: Iterable[Row], before: AppliedVersion, after: Version, undo: Undo
) -> set[Place]:
    """The keys with a published row above the fork, or that an undone flush had ended."""
    vb, fork = undo.vbucket, undo.fork_seqno
    old = published(log, rows, before, vb)
    found = {(vb, row["key"]) for row in old if row["seqno"] > fork}
    flushes = [row["seqno"] for row in old if row["kind"] == "system_event"]
    if vb not in after.cleared and any(seqno > fork for seqno in flushes):
        low = max((seqno for seqno in flushes if seqno <= fork), default=0)
        if undo.version:
            base = log.lake.versions[undo.version]
            low = log.lake.states_at[base.current.round_of(vb)][vb].complete_seqno
            found |= {place for place in base.rows if place[0] == vb}
        found |= {(vb, row["key"]) for row in old if low < row["seqno"] <= fork}
    return found


def taken_back(log: ForkingLog) -> set[tuple[int, int, str]]:
    """(version, vbucket, key) of what the applies took back, by the rule of the audit."""
    found, rows = set(), log.lake.rows
    for before, after in pairwise(log.lake.versions):
        for undo in after.undone:
            vb, number = undo.vbucket, before.current.round_of(undo.vbucket)
            read = log.lake.states_at[number][vb].complete_seqno if number else 0
            undone = undone_places(log, rows, before.current, after, undo)
            for place in before.rows.keys() | after.rows.keys():
                old, new = before.rows.get(place), after.rows.get(place)
                if place[0] != vb or (old and new and old["cas"] == new["cas"]):
                    continue
                if undo.is_replacement:
                    known = max(read, old["seqno"] if old else 0)
                    is_undone = new is None or new["seqno"] <= known
                else:
                    is_undone = place in undone
                if is_undone:
                    found.add((after.current.to_round, *place))
    return found
