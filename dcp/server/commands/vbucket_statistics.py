"""Statistics groups about vbuckets: states, seqnos, contents, failover logs, checkpoints.

Names are kv_engine's (in ``engines/ep/src``: ``vbucket.cc``, doSeqnoStats and addStats;
``failover-table.cc``, ``checkpoint_manager.cc`` and ``checkpoint.cc``, addStats). States are as
clients see them: in a relay all vbuckets are active.
"""

from collections.abc import Iterator

from dcp.server.checkpoints.checkpoint import CheckpointKind
from dcp.server.commands.stat_request import Statistic, StatisticsRequest
from dcp.server.model.refused_error import RefusedError
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import Status, VbucketState


def states(question: StatisticsRequest) -> Iterator[Statistic]:
    return ((f"vb_{v.id}", v.shown_state.name.lower()) for v in question.vbuckets())


def seqnos(question: StatisticsRequest) -> Iterator[Statistic]:
    wanted = question.vbuckets_asked_for()
    if question.argument and wanted[0].shown_state is VbucketState.DEAD:
        raise RefusedError(Status.NOT_MY_VBUCKET, f"vbucket {wanted[0].id}: found state DEAD")
    return (each for vbucket in wanted for each in _seqnos_of(vbucket))


def _sync_write_seqnos(vbucket: Vbucket) -> tuple[int, int]:
    """Return the high prepared seqno and the high completed seqno."""
    data = vbucket.data
    durability = data.durability_at(data.high_seqno)
    return durability.high_prepared_seqno, durability.high_completed_seqno


def _seqnos_of(vbucket: Vbucket) -> Iterator[Statistic]:
    data, prefix = vbucket.data, f"vb_{vbucket.id}"
    prepared, completed = _sync_write_seqnos(vbucket)
    yield f"{prefix}:high_seqno", data.high_seqno
    yield f"{prefix}:abs_high_seqno", data.high_seqno
    yield f"{prefix}:last_persisted_seqno", vbucket.public_persisted_seqno
    yield f"{prefix}:uuid", vbucket.failover_log.current_uuid
    yield f"{prefix}:purge_seqno", data.disk.purge_seqno
    start, end = data.disk.persisted_snapshot
    yield f"{prefix}:last_persisted_snap_start", start
    yield f"{prefix}:last_persisted_snap_end", end
    yield f"{prefix}:high_prepared_seqno", prepared
    yield f"{prefix}:high_completed_seqno", completed
    yield f"{prefix}:max_visible_seqno", vbucket.documents.collections.max_visible_seqno


def details(question: StatisticsRequest) -> Iterator[Statistic]:
    """Group ``vbucket-details``, without kv_engine's figures of a hash table."""
    wanted = question.vbuckets_asked_for()
    return (each for vbucket in wanted for each in _details_of(vbucket))


def _details_of(vbucket: Vbucket) -> Iterator[Statistic]:
    data, prefix = vbucket.data, f"vb_{vbucket.id}"
    prepared, completed = _sync_write_seqnos(vbucket)
    yield f"{prefix}:num_items", sum(data.newest.document_counts().values())
    yield f"{prefix}:queue_size", data.high_seqno - data.disk.persisted_seqno
    yield f"{prefix}:queue_memory", data.persistence.unwritten_bytes
    yield f"{prefix}:uuid", vbucket.failover_log.current_uuid
    yield f"{prefix}:purge_seqno", data.disk.purge_seqno
    yield f"{prefix}:high_completed_seqno", completed
    yield f"{prefix}:max_visible_seqno", vbucket.documents.collections.max_visible_seqno
    yield f"{prefix}:persistence_seqno", data.disk.persisted_seqno
    yield f"{prefix}:max_cas", vbucket.documents.clock.last
    yield f"{prefix}:high_seqno", data.high_seqno
    yield f"{prefix}:high_prepared_seqno", prepared
    yield prefix, vbucket.shown_state.name.lower()


def failovers(question: StatisticsRequest) -> Iterator[Statistic]:
    wanted = question.vbuckets_asked_for()
    return (each for vbucket in wanted for each in _failovers_of(vbucket))


def _failovers_of(vbucket: Vbucket) -> Iterator[Statistic]:
    prefix, entries = f"vb_{vbucket.id}", vbucket.failover_log.entries
    yield f"{prefix}:num_entries", len(entries)
    yield f"{prefix}:num_erroneous_entries_erased", 0  # this server makes no erroneous entries
    for index, entry in enumerate(entries):
        yield f"{prefix}:{index}:id", entry.vb_uuid
        yield f"{prefix}:{index}:seq", entry.seqno


def checkpoints(question: StatisticsRequest) -> Iterator[Statistic]:
    wanted = question.vbuckets_asked_for()
    return (each for vbucket in wanted for each in _checkpoints_of(vbucket))


def _checkpoints_of(vbucket: Vbucket) -> Iterator[Statistic]:
    prefix, manager = f"vb_{vbucket.id}", vbucket.data.checkpoints
    checkpoints, cursors = manager.checkpoints, manager.cursors
    yield f"{prefix}:state", vbucket.shown_state.name.lower()
    yield f"{prefix}:open_checkpoint_id", checkpoints[-1].id
    yield f"{prefix}:num_conn_cursors", len(cursors)
    yield f"{prefix}:num_checkpoint_items", sum(each.item_count for each in checkpoints)
    yield f"{prefix}:num_open_checkpoint_items", checkpoints[-1].item_count
    yield f"{prefix}:num_checkpoints", len(checkpoints)
    yield f"{prefix}:mem_usage", manager.memory_bytes
    for name, cursor in cursors.items():
        shown_name = name.replace(" ", "_")
        yield f"{prefix}:{shown_name}:cursor_checkpoint_id", cursor.checkpoint_id
        yield f"{prefix}:{shown_name}:cursor_seqno", cursor.seqno
        yield f"{prefix}:{shown_name}:num_items_for_cursor", manager.items_after(cursor.seqno)
    for each in checkpoints:
        is_open = each is checkpoints[-1]
        yield f"{prefix}:id_{each.id}:mem_usage_queued_items", each.memory_bytes
        yield f"{prefix}:id_{each.id}:state", "CHECKPOINT_" + ("OPEN" if is_open else "CLOSED")
        is_memory = each.kind is CheckpointKind.MEMORY
        yield f"{prefix}:id_{each.id}:type", "Memory" if is_memory else "Disk"
        yield f"{prefix}:id_{each.id}:snap_start", each.snapshot_start
        yield f"{prefix}:id_{each.id}:snap_end", each.snapshot_end
        yield f"{prefix}:id_{each.id}:num_items", each.item_count
        yield f"{prefix}:id_{each.id}:num_cursors_in_checkpoint", each.cursors
