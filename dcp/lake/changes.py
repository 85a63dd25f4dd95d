"""The change log: append a round to it, and read what it says about rounds and positions.

An append is a compare-and-set: its Delta transaction id is (lake id, round), and rounds are
consecutive. Delta skips an append with a stale number *silently*, so every append is read back.
"""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

from dcp.errors import FencedError, LakeError
from dcp.lake.history import (
    WHOLE,
    WINDOW,
    Commit,
    history,
    metadata_json,
    reaches_creation,
    refuse_other_writer,
)
from dcp.lake.stop_points import reached
from dcp.lake.tables import LakeTables
from dcp.lake.tampering import is_settled, log_tampering, refuse_tampering

_CONFLICT: Final = "[DELTA_CONCURRENT_"
"""How Delta's conditions for a lost race begin."""

_committed_writers: set[str] = set()
"""Writers of this process that have committed a round; the newest commits may not tell."""


def latest_round(lake: LakeTables) -> int:
    """Return the newest committed round; 0 where there is none."""
    return newest_round(lake, history(lake.spark, lake.changes_sql))


def newest_round(lake: LakeTables, commits: Sequence[Commit]) -> int:
    """Return the newest round, looking further than ``commits`` only where they hold none.

    Long maintenance can push our commits out of the window, and log retention out of the history;
    then the rows themselves tell.
    """
    for commit in commits:
        if commit.round is not None:
            return commit.round
    if reaches_creation(commits):
        return 0
    for commit in history(lake.spark, lake.changes_sql, WHOLE):
        if commit.round is not None:
            return commit.round
    row = lake.spark.sql(f"SELECT coalesce(max(round), 0) FROM {lake.changes_sql}").collect()[0]
    return int(row[0])


def refuse_tampered_log(lake: LakeTables, commits: Sequence[Commit] | None = None) -> None:
    """Raise LakeError where somebody else changed rows of ``changes``.

    ``commits`` are its newest ones, where the caller has them; it looks further if it must.
    """
    found = history(lake.spark, lake.changes_sql) if commits is None else commits
    if not is_settled(found):
        found = history(lake.spark, lake.changes_sql, WHOLE)
    refuse_tampering(str(lake.location), lake.changes_sql, log_tampering(found))


def append_round(
    lake: LakeTables, rows: DataFrame, round_number: int, writer_id: str, *, verify: bool = True
) -> Commit:
    """Commit a round: its rows and its positions, in one append that only one driver can win.

    Args:
        lake: where to.
        rows: the columns of ``changes``; evaluated once, by the append.
        round_number: the newest committed round plus 1.
        writer_id: the random id of this driver.
        verify: whether to look for other writers before the rows are received.

    Returns:
        The commit as Delta's history has it.

    Raises:
        FencedError: another driver committed this round, or is alternating with this one.
        LakeError: the round is not the next one, or somebody else changed rows of the log.

    """
    metadata: dict[str, Any] = {"lake": lake.identity.lake_id, "round": round_number}
    metadata["writer"] = writer_id
    if verify:
        commits = history(lake.spark, lake.changes_sql)
        has_committed = writer_id in _committed_writers
        if has_committed and not any(commit.writer for commit in commits):
            commits = history(lake.spark, lake.changes_sql, WHOLE)  # much maintenance since
        refuse_other_writer(commits, writer_id, has_committed=has_committed)
        refuse_wrong_round(newest_round(lake, commits), round_number, commits)
        refuse_tampered_log(lake, commits)
        # So that a change of rows that slips in between is found by the next round.
        metadata["base"] = commits[0].version
    writer = (
        rows.write.format("delta")
        .mode("append")
        .option("txnAppId", lake.identity.lake_id)
        .option("txnVersion", str(round_number))
        .option("userMetadata", metadata_json(metadata))
    )
    try:
        if lake.location.schema is not None:
            writer.saveAsTable(lake.changes_sql.replace("`", ""))
        else:
            writer.save(lake.location.path("changes"))
        reached("round.committed")
    except Exception as error:  # Spark's own class, or the bridge's: the history decides
        return _after_failure(lake, round_number, writer_id, error)
    return _committed(lake, round_number, writer_id)


def refuse_wrong_round(newest: int, round_number: int, commits: Sequence[Commit]) -> None:
    """Raise FencedError or LakeError where ``round_number`` is not the one after ``newest``."""
    if round_number == newest + 1:
        return
    if round_number <= newest:
        winner = next((commit for commit in commits if commit.round == round_number), None)
        raise FencedError(
            f"round {round_number} is committed already"
            + (f" as {winner} by writer {winner.writer}" if winner else "")
            + f": found newest round {newest}, expected {round_number - 1}; this driver stops"
        )
    raise LakeError(f"round {round_number}: found newest round {newest}, expected the one before")


def _committed(lake: LakeTables, round_number: int, writer_id: str) -> Commit:
    commits = history(lake.spark, lake.changes_sql, WINDOW)
    for commit in commits:
        if commit.round == round_number:
            if commit.writer == writer_id:
                _committed_writers.add(writer_id)
                return commit
            raise FencedError(
                f"another driver committed round {round_number}: found {commit} by writer "
                f"{commit.writer}, expected writer {writer_id}; this driver stops"
            )
    raise FencedError(
        f"round {round_number} by writer {writer_id} was not committed: found newest round "
        f"{newest_round(lake, commits)}; another driver writes to this lake, this driver stops"
    )


def _after_failure(lake: LakeTables, round_number: int, writer_id: str, error: Exception) -> Commit:
    """Decide by what is there: an append that reported a failure may have committed.

    What class a conflict has depends on where Spark's bridge met it; its condition is in the text.
    """
    try:
        commits = history(lake.spark, lake.changes_sql)
    except Exception:  # Spark is gone: nobody knows, and the next run looks
        raise error from None
    for commit in commits:
        if commit.round == round_number and commit.writer == writer_id:
            _committed_writers.add(writer_id)
            return commit
    is_taken = any(commit.round == round_number for commit in commits)
    if is_taken or _CONFLICT in str(error):
        raise FencedError(
            f"another driver wrote to this lake while round {round_number} was committed; "
            "this driver stops"
        ) from error
    raise error
