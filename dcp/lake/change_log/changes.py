"""Appends rounds to the change log ``changes``, and reads its newest round.

An append is fenced (`dcp.lake.store.table.round_fence`). Delta skips an outdated append without an
error, so each append reads the history back.
"""

import secrets
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from dcp.errors import DcplakeError, FencedError, LakeError, StoreUnavailableError
from dcp.lake.change_log.stop_points import reached
from dcp.lake.change_log.tampering import is_conclusive, refuse_tampering
from dcp.lake.spark.failures import known_error
from dcp.lake.store.lake_store import Append
from dcp.lake.store.table import CommitConflictError, round_fence
from dcp.lake.tables.history import (
    LAKE,
    READ_VERSION,
    ROUND,
    WHOLE,
    WINDOW,
    WRITER,
    TableCommit,
    history,
    history_until,
    reaches_creation,
    refuse_other_writer,
)
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.round_record import states_to_batch
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart

_ATTEMPTS: Final = 5
"""Maintenance may change the log during each append; after so many attempts the round fails."""

_APPEND: Final = "append"
"""The commit metadata's name for the random id of an append.

An object store may carry out a PUT after the driver took it for failed and tried another append.
"""

_committed_writers: set[str] = set()
"""Drivers of this process that have committed a round; recent commits may not show it."""


def latest_round(lake: LakeTables) -> int:
    return newest_round(lake, history(lake.changes))


def newest_round(lake: LakeTables, commits: Sequence[TableCommit]) -> int:
    """Return the newest round; it reads further back only if ``commits`` hold no round."""
    found = history_until(
        lake.changes, lambda told: any(each.round is not None for each in told), commits
    )
    for commit in found:
        if commit.round is not None:
            return commit.round
    if reaches_creation(found):
        return 0
    # Long maintenance and Delta's log retention can remove all our commits from the history.
    [row] = lake.changes.rows("coalesce(max(round), 0) AS round", "true")
    return int(row["round"])


def round_time(
    lake: LakeTables, round_number: int, newest_commits: Sequence[TableCommit]
) -> datetime | None:
    """Return the commit time of a round; None if the history has forgotten it.

    The Delta log of ``changes`` keeps commits for twice the horizon.
    """
    commits = newest_commits
    newest = newest_round(lake, newest_commits)
    # Each round is a commit, so the first limit nearly always suffices.
    for limit in (newest - round_number + WINDOW, WHOLE):
        for commit in commits:
            if commit.round == round_number:
                return commit.time
        if reaches_creation(commits):
            return None
        commits = history(lake.changes, limit)
    return next((commit.time for commit in commits if commit.round == round_number), None)


def refuse_tampered_log(lake: LakeTables, commits: Sequence[TableCommit]) -> None:
    """Raise LakeError if somebody else changed rows of ``changes``.

    ``commits`` are its newest commits. The function reads more if needed.
    """
    found = history_until(lake.changes, is_conclusive, commits)
    refuse_tampering(str(lake.location), lake.changes_sql, found)


def commits_of_driver(lake: LakeTables, writer_id: str) -> Sequence[TableCommit]:
    """Return the newest commits of ``changes``, for a driver that is about to append.

    Raises:
        FencedError: another driver writes to the lake at the same time.
    """
    commits: Sequence[TableCommit] = history(lake.changes)
    has_committed = writer_id in _committed_writers
    if has_committed:  # maintenance may have added many commits after it
        commits = history_until(lake.changes, lambda told: any(c.writer for c in told), commits)
    refuse_other_writer(commits, writer_id, has_committed=has_committed)
    return commits


def append_round(
    lake: LakeTables,
    append: Append,
    round_number: int,
    writer_id: str,
    *,
    verify: bool = True,
) -> TableCommit:
    """Commit a round, with its rows and positions, by an ``append`` that only one driver can win.

    ``writer_id`` is the random id of this driver. With ``verify``, the round must be the next one
    of an undamaged log.

    Raises:
        FencedError: another driver committed this round, or writes at the same time.
        LakeError: the round is not the next one, somebody else changed rows of the log, or
            maintenance changed it during every attempt; nothing was committed.
        StoreUnavailableError: an earlier append of this driver, which seemed to have failed, has
            committed this round.
    """
    append_id = secrets.token_hex(8)
    metadata: dict[str, Any] = {LAKE: lake.identity.lake_id, ROUND: round_number}
    metadata |= {WRITER: writer_id, _APPEND: append_id}
    commits = commits_of_driver(lake, writer_id)
    if verify:
        refuse_wrong_round(newest_round(lake, commits), round_number, commits, writer_id)
        refuse_tampered_log(lake, commits)
        # If somebody changes rows between this check and the commit, the next round finds it.
        metadata[READ_VERSION] = commits[0].version
    transaction = round_fence(lake.identity.lake_id, round_number)

    def read_version() -> int:
        """Return the newest version, if its history makes this round the next one."""
        # Making the rows took time, in which another driver may have committed.
        lake.store.cached_reads.read_anew()
        commits = history(lake.changes)
        newest = newest_round(lake, commits)
        if verify or newest >= round_number:
            refuse_wrong_round(newest, round_number, commits, writer_id)
        return commits[0].version

    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        failure = None
        try:
            with lake.store.cached_reads.committing():
                append(read_version, transaction, metadata)
            reached("round.committed")
        except Exception as error:  # Spark's own class, or the bridge's: `_read_back` decides
            failure = error
        if (commit := _read_back(lake, round_number, writer_id, append_id, failure)) is not None:
            return commit
    raise LakeError(
        f"round {round_number}: others committed to the change log during each of {_ATTEMPTS} "
        "appends (maintenance?); the round was not committed, run it again when that has ended"
    ) from failure


def append_states(
    lake: LakeTables,
    states: Collection[LakeVbucketState],
    round_number: int,
    writer_id: str,
    *,
    restarts: Iterable[Restart] = (),
    verify: bool = True,
) -> TableCommit:
    """Commit a round without documents: all vbuckets' states, after some restarts.

    Raises: see `append_round`.
    """
    rows = [states_to_batch(states, round_number, restarts)]
    append = lake.store.new_changes(1, lambda _: iter(rows), are_few=True)
    return append_round(lake, append, round_number, writer_id, verify=verify)


def refuse_wrong_round(
    newest: int, round_number: int, commits: Sequence[TableCommit], writer_id: str
) -> None:
    if round_number == newest + 1:
        return
    if round_number <= newest:
        winner = next((commit for commit in commits if commit.round == round_number), None)
        if winner is not None and winner.writer == writer_id:
            raise _earlier_append(winner)
        raise FencedError(
            f"round {round_number} is committed already"
            + (f" as {winner} by writer {winner.writer}" if winner else "")
            + f": found newest round {newest}, expected {round_number - 1}; this driver stops"
        )
    raise LakeError(
        f"round {round_number}: found newest round {newest}, expected {round_number - 1}"
    )


def _read_back(
    lake: LakeTables,
    round_number: int,
    writer_id: str,
    append_id: str,
    failure: Exception | None,
) -> TableCommit | None:
    """Return the commit of an append. It may exist although the append raised ``failure``.

    None if the append may be tried again: another commit came first, and it was not a round.
    """
    try:
        # Other drivers may have committed later rounds.
        commits = history_until(
            lake.changes, lambda told: any(1 <= (each.round or 0) <= round_number for each in told)
        )
        newest = newest_round(lake, commits)
    except Exception as unread:
        if failure is None:
            raise
        if (known := known_error(failure, f"round {round_number}")) is not None:
            raise known from failure
        told = str(failure).strip().partition("\n")[0]
        raise DcplakeError(
            f"round {round_number}: {told}; the change log cannot be read either, so it is unknown "
            "whether the round was committed; run it again, it continues from the change log"
        ) from unread
    for commit in commits:
        if commit.round == round_number and commit.writer == writer_id:
            # An earlier append has committed late: its rows are in the log, these are not.
            if commit.ours.get(_APPEND) != append_id:
                raise _earlier_append(commit) from failure
            _committed_writers.add(writer_id)
            return commit
    # Delta skipped the append, or it failed, because another driver has committed this round.
    if failure is None or newest >= round_number:
        winner = next(
            (f", {each} by writer {each.writer}" for each in commits if each.round == round_number),
            "",
        )
        raise FencedError(
            f"another driver writes to this lake: found newest round {newest}{winner}, expected "
            f"round {round_number} by our writer {writer_id}; this driver stops"
        ) from failure
    if not isinstance(failure, CommitConflictError):
        raise failure
    return None


def _earlier_append(commit: TableCommit) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"round {commit.round} is committed, as {commit}: an earlier append of this driver seemed "
        "to fail, but reached the change log later; the next round continues from there"
    )
