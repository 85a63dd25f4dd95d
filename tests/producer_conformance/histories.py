"""One branch's items as a whole: what was shown, and what the seqnos that nobody was shown held.

Every seqno holds something. One that no stream was shown, below the end of a snapshot that would
have shown it, held by then

    a prepare                      that an abort which was shown gave up
    an older version of a key      where a later one's revision leaves room for it: de-duplicated
    something of a collection      that was dropped since, within the same snapshot
    a purged tombstone             at or below the purge seqno: of a key that was shown and is gone
    something hidden               else (another collection, a prepare, an abort)

(which makes a difference where the recording shows nothing that can be hidden), and one that no
snapshot reached may hold any document: nobody was
to see it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dcp.wire import messages as m
from dcp.wire.system_event import CollectionEnded
from dcp.wire.vocabulary import Opcode
from tests.producer_conformance.sightings import Item, Snapshot, What

_MUTATION = int(Opcode.DCP_MUTATION)
_DELETION = int(Opcode.DCP_DELETION)


def merged(views: Iterable[Item]) -> Item:
    """Return one item of all views of it: each field from the connection that was shown most."""
    ranked = sorted(views, key=lambda item: item.quality)
    best = ranked[-1]
    opcode = max(item.opcode for item in ranked)  # an EXPIRATION is a DELETION to most
    delete_time = max(item.delete_time for item in ranked)
    return replace(best, opcode=opcode, delete_time=delete_time)


@dataclass(slots=True)
class _Room:
    """Revisions of a key that were shown to nobody: up to ``places`` seqnos in (after, before).

    The version at ``after`` was still the newest at ``held_until``: none of the room lies below.
    """

    of: tuple[What, int, bytes]
    after: int
    before: int
    held_until: int
    first_rev: int
    places: int
    taken: list[int] = field(default_factory=list)


def complete(
    shown: Mapping[int, Item], seqnos: range, purge_seqno: int, snapshots: Sequence[Snapshot]
) -> tuple[Item, ...]:
    """Return the items of all ``seqnos``, the given ones among them."""
    found = dict(shown)
    missed = {item.seqno: item for one in snapshots for item in missed_by(one, shown)}
    gone = [item for _, item in sorted(missed.items()) if item.opcode != _DELETION]
    unseen = [seqno for seqno in seqnos if seqno not in found]
    for seqno in unseen:
        item = next((item for item in gone if item.seqno < seqno <= purge_seqno), None)
        if item is not None:
            gone.remove(item)
            found[seqno] = replace(_tombstone(seqno, item.key), rev=item.rev + 1)
    for abort in shown.values():
        if isinstance(abort.message, m.Abort) and abort.message.prepared_seqno in seqnos:
            prepared = abort.message.prepared_seqno
            key, collection_id = abort.key, abort.collection_id
            found.setdefault(prepared, Item(prepared, key, What.PREPARE, collection_id))
    # The seqno that replaced the unseen one lies at or below this.
    latest = {
        seqno: min((one.end for one in snapshots if one.after < seqno <= one.up_to), default=None)
        for seqno in unseen
        if seqno not in found
    }
    for room in _filled(_rooms(shown, snapshots), latest):
        for rev, seqno in enumerate(sorted(room.taken), room.first_rev):
            what, collection_id, key = room.of
            item = Item(seqno, key, what, collection_id, rev, opcode=_MUTATION, value=b"{}")
            found[seqno] = item
    for seqno in latest.keys() - found.keys():
        found[seqno] = _unknown(
            seqno, purge_seqno, latest[seqno], _dropped_since(seqno, latest[seqno], shown)
        )
    return tuple(found[seqno] for seqno in seqnos)


def _rooms(shown: Mapping[int, Item], snapshots: Sequence[Snapshot]) -> list[_Room]:
    by_key: dict[tuple[What, int, bytes], list[Item]] = defaultdict(list)
    for seqno in sorted(shown):
        item = shown[seqno]
        if item.what in (What.DOCUMENT, What.PREPARE):
            by_key[item.what, item.collection_id, item.key].append(item)
    rooms = []
    for of, versions in by_key.items():
        after, rev = 0, 0
        for version in versions:
            places = version.rev - rev - 1
            if places > 0:
                held = max((one.end for one in snapshots if after in one.shown), default=0)
                rooms.append(_Room(of, after, version.seqno, held, rev + 1, places))
            after, rev = version.seqno, version.rev
    return sorted(rooms, key=lambda room: room.before)


def _filled(rooms: Sequence[_Room], latest: Mapping[int, int | None]) -> Sequence[_Room]:
    """Put as many seqnos into rooms as there are places for, those with a bound first.

    Each may go into several rooms: one that is in the way moves on to another of its own.
    """

    def suits(seqno: int, room: _Room) -> bool:
        end = latest[seqno]
        is_free = max(room.after, room.held_until) < seqno < room.before
        return is_free and (end is None or room.before <= end)

    def place(seqno: int, tried: set[int]) -> bool:
        for number, room in enumerate(rooms):
            if number in tried or not suits(seqno, room):
                continue
            tried.add(number)
            if len(room.taken) < room.places:
                room.taken.append(seqno)
                return True
            for index, other in enumerate(room.taken):
                if place(other, tried):
                    room.taken[index] = seqno
                    return True
        return False

    for seqno in sorted(latest, key=lambda one: (latest[one] is None, one)):
        place(seqno, set())
    return rooms


def missed_by(snapshot: Snapshot, shown: Mapping[int, Item]) -> list[Item]:
    """Return what the snapshot should have shown, by all that is known, and did not."""
    known = sorted(seqno for seqno in shown if seqno <= snapshot.end)
    newest = {(shown[seqno].collection_id, shown[seqno].key): seqno for seqno in known}
    return [
        shown[seqno]
        for seqno in sorted(newest.values())
        if snapshot.after < seqno <= snapshot.up_to
        and seqno not in snapshot.shown
        and shown[seqno].what is What.DOCUMENT
    ]


def _dropped_since(seqno: int, end: int | None, shown: Mapping[int, Item]) -> int | None:
    """Return a collection that was dropped behind a seqno, up to the end; None if none was."""
    return next(
        (
            item.event.collection_id
            for _, item in sorted(shown.items())
            if end is not None
            and seqno < item.seqno <= end
            and isinstance(item.event, CollectionEnded)
        ),
        None,
    )


def _unknown(seqno: int, purge_seqno: int, end: int | None, dropped: int | None) -> Item:
    if seqno <= purge_seqno:
        return _tombstone(seqno, b"purged %d" % seqno)
    what = What.DOCUMENT if end is None or dropped is not None else What.HIDDEN
    key = b"unseen %d" % seqno
    return Item(seqno, key, what, dropped or 0, opcode=_MUTATION, value=b"{}")


def _tombstone(seqno: int, key: bytes) -> Item:
    return Item(seqno, key, opcode=_DELETION)
