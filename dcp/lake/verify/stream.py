"""Streams keys, seqnos and CAS of whole vbuckets on the executors, without values.

Runs inside ``mapInArrow`` as a round does, with a round's streams
(`dcp.lake.receive.task_receiver`): each starts at seqno 0 and ends at the end of the snapshot that
holds its target. Rows leave as they come, so memory is bounded by the flow control window; the last
row of a vbucket says how its stream ended. A row without a key tells that a collection began, was
flushed or was dropped: what the stream told of it at lower seqnos is gone.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.receive.stop_policy import UNLIMITED
from dcp.lake.receive.task_receiver import TaskReceiver, task_function
from dcp.lake.rounds.observer import RoundProgress
from dcp.lake.rounds.round_plan import TaskPlan
from dcp.lake.rounds.stream_result import StreamResult
from dcp.lake.store.lake_store import BatchFunction
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.schema import CHANGES, ITEM_KINDS, RowKind
from dcp.records import plain

_NO_ROUND: Final = 0

SOURCE_ROWS: Final = pa.schema(
    [
        *map(CHANGES.field, ("collection_id", "vbucket", "key", "seqno", "cas")),
        ("deleted", pa.bool_()),
        ("ending", pa.string()),  # of one row per vbucket, which has nothing else
    ]
)

_ITEM_KINDS: Final = pa.array(ITEM_KINDS)


@dataclass(frozen=True, slots=True)
class StreamEnding:
    vbucket: int
    reason: str = ""
    """Empty if the target was reached, or the node proved that it has no more."""
    detail: str = ""
    purge_seqno: int = 0

    @classmethod
    def of(cls, result: StreamResult) -> "StreamEnding":
        purge_seqno = result.purge_seqno or 0
        if result.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP):
            return cls(result.plan.vbucket, purge_seqno=purge_seqno)
        reason = result.reason or str(result.outcome)
        return cls(result.plan.vbucket, reason, result.detail, purge_seqno)


def metadata_access(access: SourceAccess) -> SourceAccess:
    """Return the same access, for connections that send neither values nor old versions."""
    connection = replace(
        access.consumer.connection,
        metadata_only=True,
        change_streams=False,
        receiver_group_tag="",
    )
    return replace(access, consumer=replace(access.consumer, connection=connection))


def read_function(
    lake_id: str,
    tasks: Sequence[TaskPlan],
    access: SourceAccess,
    progress: RoundProgress | None = None,
) -> BatchFunction:
    name = f"dcplake-verify-{lake_id[:8]}"
    return task_function(tasks, _NO_ROUND, UNLIMITED, access, name, _rows_of, progress)


def _rows_of(receiver: TaskReceiver) -> Iterator[pa.RecordBatch]:
    yield from map(narrow_rows, receiver.stream())
    endings = map(StreamEnding.of, receiver.results.values())
    rows = [{"vbucket": each.vbucket, "ending": json.dumps(plain(each))} for each in endings]
    yield pa.RecordBatch.from_pylist(rows, schema=SOURCE_ROWS)


def narrow_rows(changes: pa.RecordBatch) -> pa.RecordBatch:
    is_item = pc.is_in(changes.column("kind"), _ITEM_KINDS)
    is_end = pc.and_(
        pc.equal(changes.column("kind"), RowKind.SYSTEM_EVENT),
        pc.is_valid(changes.column("collection_id")),
    )
    items = changes.filter(pc.or_(is_item, is_end))
    ready = {
        name: items.column(name) for name in ("collection_id", "vbucket", "key", "seqno", "cas")
    }
    ready["deleted"] = pc.not_equal(items.column("kind"), RowKind.MUTATION)
    ready["ending"] = pa.nulls(items.num_rows, pa.string())
    return pa.RecordBatch.from_arrays(
        [ready[column.name] for column in SOURCE_ROWS], schema=SOURCE_ROWS
    )
