"""Plans the backfill of a stream: one snapshot of everything on disk after the stream's seqno.

A first backfill of one collection may come in key order, between two OSO_SNAPSHOT messages and
without a marker. With change streams a second marker with the same bounds follows, with all
versions that the disk retains (kv_engine ``dcp/backfill_disk_to_stream.cc``, setupForHistoryScan
and scanHistoryCreate).
"""

from collections.abc import Iterator

from dcp.server.model.stream_filter import FilterKind, StreamFilter
from dcp.server.model.versions import Flavour
from dcp.server.storage.disk_scan import Scan
from dcp.server.streams.dcp_options import OutOfOrder, StreamSettings
from dcp.server.streams.key_order import KeyOrderItems
from dcp.server.streams.snapshots import DiskItems
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, OsoFlag


def misses_purged(data: VbucketData, wanted: StreamFilter, sent_seqno: int) -> bool:
    """Return True if the client needs tombstones that were purged.

    Call it only if the client has some items: one without any needs no deletions (kv_engine
    ``dcp/active_stream.cc``, scheduleBackfill).
    """
    purged = data.disk.purge_seqno
    # The client may send the purge seqno of its last disk snapshot: nothing was purged since.
    if wanted.purge_seqno == purged or sent_seqno >= purged:
        return False
    # A client that has all of its collections misses nothing, whatever was purged elsewhere
    # (kv_engine ``dcp/backfill_by_seqno_disk.cc``, ``allowNonRollBackCollectionStream``).
    newest = wanted.high_seqno(data.disk.high_seqnos)
    return newest is None or max(newest, data.disk.learned_purge_seqno) > sent_seqno


def snapshot_end(
    data: VbucketData, scan: Scan, settings: StreamSettings, wanted: StreamFilter
) -> int | None:
    """Return the end of the snapshot of a scan; None if there is nothing to send."""
    # The item at this seqno may be purged, or belong to another collection. With Collections
    # SEQNO_ADVANCED takes its place; without, the snapshot must end at its last item (kv_engine
    # ``docs/dcp/documentation/commands/seqno-advanced.md``).
    end = scan.end_seqno
    if not settings.flavour & Flavour.COLLECTIONS:
        end = data.disk.legacy_end(sync_writes=wanted.sync_writes)
    return end if end > scan.start_seqno else None


def scan_of(data: VbucketData, settings: StreamSettings, sent_seqno: int) -> Scan:
    """Open the disk after a seqno, each key once; with change streams only below the history."""
    history_start = data.disk.history_start_seqno if settings.options.change_streams else None
    return data.disk.scan(sent_seqno, history_start)


def items_of(
    data: VbucketData,
    scan: Scan,
    settings: StreamSettings,
    wanted: StreamFilter,
    *,
    is_first: bool,
) -> DiskItems | KeyOrderItems:
    """Return the items of a scan in the order in which the stream sends them.

    ``is_first``: the client has no items yet. Only then may they come in key order. The client must
    also ask for it, its filter must name one collection, and the quota must have room for the keys.
    """
    history = None
    if settings.options.change_streams and data.disk.history_start_seqno <= scan.end_seqno:
        history = data.disk.scan_history(scan.start_seqno)
    items = DiskItems(scan, settings.flavour, wanted, history)
    is_wanted = settings.options.out_of_order is not OutOfOrder.NO
    names_one = wanted.kind is FilterKind.COLLECTIONS and len(wanted.collections) == 1
    # A 7.0 server does so however small the collection is; newer servers compare the costs of both
    # scans (kv_engine ``dcp/active_stream.cc``).
    if is_wanted and names_one and is_first and settings.key_quota.has_room(scan.item_count):
        return KeyOrderItems(scan, items, settings.key_quota)
    return items


def messages_behind(
    items: KeyOrderItems, end: int, settings: StreamSettings
) -> Iterator[tuple[m.Body, Opcode]]:
    tells_end = settings.options.out_of_order is OutOfOrder.WITH_SEQNO_ADVANCED
    if tells_end and items.last_seqno < end:
        yield m.SeqnoAdvanced(end), Opcode.DCP_SEQNO_ADVANCED
    yield m.OsoSnapshot(OsoFlag.END), Opcode.DCP_OSO_SNAPSHOT
