"""Statistics groups about DCP connections and their streams.

Names are kv_engine's (in ``engines/ep/src``: ``connhandler.cc``, ``dcp/producer.cc``,
``dcp/stream.cc`` and ``dcp/active_stream.cc``, addStats and addTakeoverStats; ``ep_engine.cc``,
doDcpStats and doConnAggStats).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcp.server.bucket.assembly import Bucket
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.bucket.node_figures import ConnectionFigures
from dcp.server.commands.stat_request import Statistic, StatisticsRequest, text_of
from dcp.server.model.connection_name import shown_name
from dcp.server.model.refused_error import RefusedError
from dcp.server.streams.active_stream import ActiveStream, ActiveStreamPhase
from dcp.server.streams.stream_windows import StreamWindows
from dcp.server.streams.takeover import TakeoverPhase
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.json_tree import MOST_REQUEST_JSON_BYTES, json_tree
from dcp.wire.vocabulary import Status

_MOST_SEPARATOR_BYTES: Final = 8
_PHASES: Final = {
    ActiveStreamPhase.BACKFILLING: "backfilling",
    ActiveStreamPhase.IN_MEMORY: "in-memory",
    ActiveStreamPhase.ENDING: "dead",
    ActiveStreamPhase.DEAD: "dead",
}
_WAITING: Final = (TakeoverPhase.WAITING_PENDING, TakeoverPhase.WAITING_ACTIVE)


class _Streams(Enum):
    """Format of streams: a statistic for each fact, JSON for each stream, or none."""

    LEGACY = "legacy"
    JSON = "json"
    SKIP = "skip"


def _options_of(value: bytes) -> tuple[_Streams, str | None]:
    """Return the format of streams, and the user whose connections are wanted; None: all.

    They are the request's JSON; malformed JSON means no options (kv_engine ``DcpStatsOptions``).

    Raises RefusedError EINVAL if the JSON is too long.
    """
    if len(value) > MOST_REQUEST_JSON_BYTES:
        raise RefusedError(
            Status.EINVAL,
            f"dcp: found a value of {len(value)} bytes, expected at most {MOST_REQUEST_JSON_BYTES}",
        )
    try:
        tree = json_tree(value, MOST_REQUEST_JSON_BYTES) if value else {}
    except ValueError:
        return _Streams.LEGACY, None
    if not isinstance(tree, dict):
        return _Streams.LEGACY, None
    options, chosen = tree.get("filter", {}), tree.get("stream_format", "legacy")
    if not isinstance(options, dict) or chosen not in [each.value for each in _Streams]:
        return _Streams.LEGACY, None
    user = options.get("user")
    return _Streams(chosen), user if isinstance(user, str) else None


def connections(question: StatisticsRequest) -> Iterator[Statistic]:
    bucket, (streams, user) = question.bucket, _options_of(question.value)
    found = _connections_at(bucket, question.node)
    selected = [each for each in found if user in (None, each.client.user)]
    return _connections(bucket, found, selected, streams)


def _connections_at(bucket: Bucket, node: int) -> list[DcpConnection]:
    return [each for (at, _), each in bucket.dcp_connections.items() if at == node]


def connection_figures(bucket: Bucket, node: int) -> list[ConnectionFigures]:
    return [
        ConnectionFigures(
            name=each.client.display_name.removeprefix("eq_dcpq:"),
            window_bytes=each.flow.window_bytes,
            outstanding_bytes=each.flow.outstanding_bytes,
            acked_bytes=each.flow.acked_bytes,
            sent_bytes=each.bytes_sent,
            items_sent=each.items_sent,
            streams=len(each.streams),
            paused=each.paused_reason or "",
            over_acked_bytes=each.over_acked_bytes,
        )
        for each in _connections_at(bucket, node)
    ]


def _connections(
    bucket: Bucket, found: list[DcpConnection], selected: list[DcpConnection], streams: _Streams
) -> Iterator[Statistic]:
    remaining = backfilling = 0
    for connection in selected:
        tally = _tally(bucket, connection)
        remaining += tally.remaining
        backfilling += tally.backfilling
        yield from _connection(connection, tally)
    yield "ep_dcp_count", len(found)
    yield "ep_dcp_producer_count", len(found)
    yield "ep_dcp_consumer_count", 0
    yield "ep_dcp_total_bytes", sum(each.bytes_sent for each in selected)
    yield "ep_dcp_items_sent", sum(each.items_sent for each in selected)
    yield "ep_dcp_items_remaining", remaining
    yield "ep_dcp_num_running_backfills", backfilling
    yield "ep_dcp_dead_conn_count", 0  # closed connections are forgotten at once
    if streams is _Streams.SKIP:
        return
    for connection in selected:
        for stream in list(connection.streams):
            if stream.is_sending:
                prefix = f"{connection.client.display_name}:stream_{stream.vbucket}"
                yield from _stream_statistics(stream, connection.stream_windows, prefix, streams)


@dataclass(slots=True)
class _Tally:
    """Counts over a connection's streams, taken in one walk: there can be 16,384 streams."""

    streams: int = 0
    sending: int = 0
    backfilling: int = 0
    remaining: int = 0
    from_disk: int = 0


def _tally(bucket: Bucket, connection: DcpConnection) -> _Tally:
    tally = _Tally(len(connection.streams))
    for stream in connection.streams:
        tally.from_disk += stream.items_from_disk
        if not stream.is_sending:
            continue
        tally.sending += 1
        tally.backfilling += stream.phase is ActiveStreamPhase.BACKFILLING
        vbucket = bucket.table.at(stream.vbucket, connection.key[0])
        if vbucket is not None:
            tally.remaining += max(0, vbucket.data.high_seqno - stream.sent_seqno)
    return tally


def _connection(connection: DcpConnection, tally: _Tally) -> Iterator[Statistic]:
    flow, noop, prefix = connection.flow, connection.noop, connection.client.display_name
    yield f"{prefix}:user", f"<ud>{connection.client.user}</ud>"
    yield f"{prefix}:type", "producer"
    reason = connection.paused_reason
    yield f"{prefix}:paused", reason is not None
    if reason is not None:  # older servers use the second name
        yield f"{prefix}:paused_current_reason", reason
        yield f"{prefix}:paused_reason", reason
    yield f"{prefix}:items_sent", connection.items_sent
    yield f"{prefix}:items_remaining", tally.remaining
    yield f"{prefix}:total_bytes_sent", connection.bytes_sent
    if noop.heard_at is not None:
        yield f"{prefix}:last_receive_time", noop.heard_at
    yield f"{prefix}:noop_enabled", noop.is_enabled
    yield f"{prefix}:noop_tx_interval", f"{noop.interval_seconds:g} s"
    yield f"{prefix}:noop_wait", noop.is_waiting
    yield f"{prefix}:force_value_compression", connection.options.forces_compression
    yield f"{prefix}:cursor_dropping", not connection.options.keeps_cursors
    announces = connection.options.announces_closed_streams
    yield f"{prefix}:send_stream_end_on_client_close_stream", announces
    yield f"{prefix}:enable_expiry_opcode", connection.options.expiry_opcode
    yield f"{prefix}:change_streams_enabled", connection.options.change_streams
    yield f"{prefix}:enable_stream_id", connection.options.stream_ids
    yield f"{prefix}:synchronous_replication", connection.options.acknowledges
    yield f"{prefix}:synchronous_writes", connection.options.sync_writes
    yield f"{prefix}:max_marker_version", "2.2" if connection.options.marker_v2 else "1.0"
    yield f"{prefix}:should_disconnect_when_stuck", connection.closes_when_stuck
    yield f"{prefix}:disconnect_when_stuck_timeout", f"{connection.stuck_timeout_seconds:g}"
    if flow.window_bytes:
        yield f"{prefix}:max_buffer_bytes", flow.window_bytes
        yield f"{prefix}:unacked_bytes", flow.outstanding_bytes
        yield f"{prefix}:total_acked_bytes", flow.acked_bytes
    # No server has it; streams count, too.
    yield f"{prefix}:over_acked_bytes", connection.over_acked_bytes
    yield f"{prefix}:flow_control", "enabled" if flow.window_bytes else "disabled"
    yield f"{prefix}:backfill_num_active", tally.backfilling
    order = "sequential" if connection.ready.is_sequential else "round-robin"
    yield f"{prefix}:backfill_order", order
    yield f"{prefix}:num_streams", tally.streams
    yield f"{prefix}:num_dead_streams", tally.streams - tally.sending


def _stream_statistics(
    stream: ActiveStream, windows: StreamWindows, prefix: str, how: _Streams
) -> Iterator[Statistic]:
    statistics = [*_stream(stream), *_window(stream, windows)]
    if how is _Streams.JSON:
        yield prefix, json.dumps(dict(statistics))
    else:
        yield from ((f"{prefix}_{name}", value) for name, value in statistics)


def _window(stream: ActiveStream, windows: StreamWindows) -> Iterator[Statistic]:
    """Yield the stream's own window, which no server has, under the connection's names."""
    flow = windows.flow(stream.opaque)
    if flow is not None and windows.is_on:
        yield "max_buffer_bytes", flow.window_bytes
        yield "unacked_bytes", flow.outstanding_bytes
        yield "total_acked_bytes", flow.acked_bytes


def _stream(stream: ActiveStream) -> Iterator[Statistic]:
    yield "flags", stream.flags
    yield "opaque", stream.opaque
    yield "start_seqno", stream.start_seqno
    yield "vb_uuid", stream.vb_uuid
    yield "snap_start_seqno", stream.snap_start_seqno
    yield "state", _state_of(stream)
    yield "end_seqno", stream.end_seqno
    yield "backfill_disk_items", stream.items_from_disk
    yield "backfill_mem_items", 0
    yield "backfill_sent", stream.items_from_disk
    yield "memory_phase", stream.items_from_memory
    yield "last_sent_seqno", stream.sent_seqno
    yield "last_sent_snap_end_seqno", stream.sent_snap_end_seqno
    yield "cursor_registered", stream.has_cursor
    yield "change_streams_enabled", text_of(value=stream.has_change_streams)
    if stream.stream_id is not None:
        yield "filter_sid", stream.stream_id


def _state_of(stream: ActiveStream) -> str:
    if stream.takeover is not None and stream.phase is ActiveStreamPhase.IN_MEMORY:
        return "takeover-wait" if stream.takeover.phase in _WAITING else "takeover-send"
    return _PHASES[stream.phase]


def aggregated(question: StatisticsRequest) -> Iterator[Statistic]:
    """Group ``dcpagg <separator>``: sums over connections whose names begin alike.

    Raises RefusedError KEY_ENOENT without a separator, as a server does.
    """
    separator = question.argument[:_MOST_SEPARATOR_BYTES]
    if not separator:
        raise RefusedError(Status.KEY_ENOENT, "dcpagg: expected a separator as argument")
    found = _connections_at(question.bucket, question.node)
    by_kind: dict[str, list[DcpConnection]] = {":total": found}
    for connection in found:
        by_kind.setdefault(_kind_of(connection, separator), []).append(connection)
    return (
        each
        for kind, connections in sorted(by_kind.items())
        for each in _sums(question.bucket, kind, connections)
    )


def _kind_of(connection: DcpConnection, separator: str) -> str:
    """Return the name's part before the separator; for a JSON name (SDKs), the agent's name."""
    name = connection.key[1]
    if name.startswith(b'"') and b'"a":"' in name:
        agent = name.partition(b'"a":"')[2]
        return shown_name(agent.partition(b"/")[0].partition(b'"')[0])
    kind, found, _ = name.partition(separator.encode())
    return shown_name(kind) if found else "_unknown"


def _sums(bucket: Bucket, kind: str, found: list[DcpConnection]) -> Iterator[Statistic]:
    tallies = [_tally(bucket, connection) for connection in found]
    paused = sum(connection.paused_reason is not None for connection in found)
    yield f"{kind}:count", len(found)
    yield f"{kind}:backoff", 0
    yield f"{kind}:producer_count", len(found)
    yield f"{kind}:activestream_count", sum(each.sending for each in tallies)
    yield f"{kind}:passivestream_count", 0
    yield f"{kind}:items_backfilled_disk", sum(each.from_disk for each in tallies)
    yield f"{kind}:items_backfilled_memory", 0
    yield f"{kind}:items_sent", sum(connection.items_sent for connection in found)
    yield f"{kind}:items_remaining", sum(each.remaining for each in tallies)
    yield f"{kind}:total_bytes", sum(connection.bytes_sent for connection in found)
    yield f"{kind}:paused_count", paused
    yield f"{kind}:unpaused_count", len(found) - paused


def takeover(question: StatisticsRequest) -> Iterator[Statistic]:
    """Group ``dcp-vbtakeover <vbucket> <connection>``: remaining work of a takeover.

    Raises:
        RefusedError: KEY_ENOENT without arguments, as from a server; EINVAL or
            NOT_MY_VBUCKET for the vbucket.
    """
    if not question.argument:
        raise RefusedError(
            Status.KEY_ENOENT, "dcp-vbtakeover: expected a vbucket and a connection's name"
        )
    number, _, name = question.argument.partition(" ")
    vbucket = question.vbucket(number)
    connection = question.bucket.dcp_connections.get((question.node, name.encode()))
    if connection is None:
        return _takeover_without_connection(vbucket)
    stream = connection.streams.find(vbucket.id, None)
    return _takeover_without_stream() if stream is None else _takeover(vbucket, stream, name)


def _takeover_without_connection(vbucket: Vbucket) -> Iterator[Statistic]:
    items, deleted = _items_and_deletes(vbucket)
    yield "status", "connection_does_not_exist"
    yield "on_disk_deletes", deleted
    yield "vb_items", items
    yield "chk_items", vbucket.data.checkpoints.open_item_count if items else 0
    yield "estimate", items + deleted


def _takeover_without_stream() -> Iterator[Statistic]:
    yield "status", "stream_does_not_exist"
    yield "estimate", 0
    yield "backfillRemaining", 0


def _takeover(vbucket: Vbucket, stream: ActiveStream, name: str) -> Iterator[Statistic]:
    yield "name", name
    if not stream.is_sending:
        yield "status", "stream_is_dead"
        yield "estimate", 0
        yield "backfillRemaining", 0
        return
    items, deleted = _items_and_deletes(vbucket)
    is_backfilling = stream.phase is ActiveStreamPhase.BACKFILLING
    data = vbucket.data
    queued = data.checkpoints.items_after(stream.sent_seqno)
    on_disk = max(0, data.disk.persisted_seqno - stream.sent_seqno) if is_backfilling else 0
    yield "status", "backfilling" if is_backfilling else "in-memory"
    yield "backfillRemaining", on_disk
    yield "estimate", on_disk + (0 if is_backfilling else queued)
    yield "chk_items", queued
    yield "vb_items", items
    yield "on_disk_deletes", deleted


def _items_and_deletes(vbucket: Vbucket) -> tuple[int, int]:
    """Return the number of documents, and the number of tombstones on disk."""
    return sum(vbucket.data.newest.document_counts().values()), vbucket.data.tombstones_on_disk()
