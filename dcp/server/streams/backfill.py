"""Builds the backfill of a stream from disk: everything after its seqno, as one snapshot.

It decides where the snapshot ends, whether purged tombstones are missing in it, and its order: that
of seqnos, or for a first backfill of one collection that of keys, between two OSO_SNAPSHOT messages
and without a marker. Who asks for change streams is told all versions that the disk retains: behind
what is older, under a second marker with the same bounds (kv_engine
``dcp/backfill_disk_to_stream.cc``, setupForHistoryScan and scanHistoryCreate).
"""

from collections.abc import Iterator

from dcp.server.model.stream_filter import FilterKind, StreamFilter
from dcp.server.model.versions import Flavour
from dcp.server.storage.disk_scan import Scan
from dcp.server.streams.key_order import KeyOrderItems
from dcp.server.streams.snapshots import DiskItems
from dcp.server.streams.stream_settings import OutOfOrder, StreamSettings
from dcp.server.vbucket.vbucket_data import VbucketData
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, OsoFlag


def misses_purged(data: VbucketData, wanted: StreamFilter, sent_seqno: int) -> bool:
    """Return whether tombstones are gone that a client with everything up to a seqno still needs.

    To be asked of one that has something: one without anything needs no deletion (kv_engine
    ``dcp/active_stream.cc``, scheduleBackfill); and no more does one that has all of the
    collections which it is shown (``dcp/backfill_by_seqno_disk.cc``,
    ``allowNonRollBackCollectionStream``).
    """
    purged = data.disk.purge_seqno
    if wanted.purge_seqno == purged or sent_seqno >= purged:
        return False
    newest = wanted.high_seqno(data.disk.high_seqnos)
    return newest is None or max(newest, data.disk.learned_purge_seqno) > sent_seqno


def snapshot_end(
    data: VbucketData, scan: Scan, settings: StreamSettings, wanted: StreamFilter
) -> int | None:
    """Return the end of the snapshot of a scan; None where it has nothing to send.

    The item at the scan's end may not be there or not be shown: it belongs to another collection,
    or was purged before a crash made it the newest. With Collections SEQNO_ADVANCED stands for it,
    else the snapshot ends with its last item, after which nothing changed (kv_engine
    ``docs/dcp/documentation/commands/seqno-advanced.md``).
    """
    end = scan.end_seqno
    if not settings.flavour & Flavour.COLLECTIONS:
        end = data.disk.legacy_end(sync_writes=wanted.sync_writes)
    return end if end > scan.start_seqno else None


def scan_of(data: VbucketData, settings: StreamSettings, sent_seqno: int) -> Scan:
    """Open the disk after a seqno, each key once: below its history, where that is asked for."""
    history_start = data.disk.history_start_seqno if settings.change_streams else None
    return data.disk.scan(sent_seqno, history_start)


def source_of(
    data: VbucketData,
    scan: Scan,
    settings: StreamSettings,
    wanted: StreamFilter,
    *,
    is_first: bool,
) -> DiskItems | KeyOrderItems:
    """Return the items of a scan that are sent, in seqno order or key order.

    By key where that is wanted, of a first backfill of one collection, and the keys have room. A
    7.0 server was seen to do so whatever the collection's part of the vbucket is; newer ones
    compare what both scans would read (kv_engine ``dcp/active_stream.cc``).
    """
    history = None
    if settings.change_streams and data.disk.history_start_seqno <= scan.end_seqno:
        history = data.disk.scan_history(scan.start_seqno)
    items = DiskItems(scan, settings.flavour, wanted, history)
    is_wanted = settings.out_of_order is not OutOfOrder.NO
    names_one = wanted.kind is FilterKind.COLLECTIONS and len(wanted.collections) == 1
    if is_wanted and names_one and is_first and settings.key_quota.has_room(scan.item_count):
        return KeyOrderItems(scan, items, settings.key_quota)
    return items


def messages_behind(
    source: KeyOrderItems, end: int, settings: StreamSettings
) -> Iterator[tuple[m.Body, Opcode]]:
    """Yield the messages that end an out-of-order snapshot of everything up to ``end``."""
    tells_end = settings.out_of_order is OutOfOrder.WITH_SEQNO_ADVANCED
    if tells_end and source.last_seqno < end:
        yield m.SeqnoAdvanced(end), Opcode.DCP_SEQNO_ADVANCED
    yield m.OsoSnapshot(OsoFlag.END), Opcode.DCP_OSO_SNAPSHOT
