"""What the applies of a `ForkingLog` took back, by the rule of the audit, without its SQL."""

from itertools import pairwise

from dcp.lake.store.log_slice import Undo
from dcp.lake.tables.applied_version import AppliedVersion
from tests.lake.forking_log import ForkingLog
from tests.lake.watched_lake import Place, Row, Version


def was_deleted(
    log: ForkingLog, rows: list[Row], held: AppliedVersion, place: Place, fork_seqno: int
) -> bool:
    """Whether a deletion above the fork was published in a version."""
    state = log.lake.states_at[held.to_round][place[0]]
    return fork_seqno > 0 and any(
        (row["vbucket"], row["key"]) == place
        and row["kind"] in ("deletion", "expiration")
        and row["round"] <= held.to_round
        and row["epoch"] == state.epoch
        and fork_seqno < row["seqno"] <= state.complete_seqno
        for row in rows
    )


def was_flushed(log: ForkingLog, after: Version, undo: Undo, place: Place) -> bool:
    """Whether a flush that is undone had ended a key of the version that is gone back to."""
    is_revived = undo.vbucket in after.revived
    return is_revived and place in log.lake.versions[undo.version].rows


def replaced_by_less(
    log: ForkingLog, held: AppliedVersion, place: Place, old: Row | None, new: Row | None
) -> bool:
    """Whether a key of a replaced vbucket is gone, older than it was, or back."""
    if old is None:
        assert new is not None
        return bool(new["seqno"] <= log.lake.states_at[held.to_round][place[0]].complete_seqno)
    return new is None or (new["cas"] != old["cas"] and new["seqno"] <= old["seqno"])


def taken_back(log: ForkingLog) -> set[tuple[int, int, str]]:
    """(version, vbucket, key) of what the applies took back, by the rule of the audit."""
    found, rows = set(), log.lake.rows
    for before, after in pairwise(log.lake.versions):
        for undo in after.undone:
            for place in before.rows.keys() | after.rows.keys():
                old, new = before.rows.get(place), after.rows.get(place)
                if place[0] != undo.vbucket:
                    continue
                if undo.is_replacement:
                    is_undone = replaced_by_less(log, before.held, place, old, new)
                elif old is None:
                    is_back = new is not None and new["seqno"] <= undo.fork_seqno
                    is_undone = is_back or (
                        new is not None
                        and (
                            was_deleted(log, rows, before.held, place, undo.fork_seqno)
                            or was_flushed(log, after, undo, place)
                        )
                    )
                else:
                    is_changed = new is None or new["cas"] != old["cas"]
                    is_undone = is_changed and old["seqno"] > undo.fork_seqno
                if is_undone:
                    found.add((after.held.to_round, *place))
    return found
