"""One branch's items as a whole: what was shown, and what the seqnos that nobody was shown held.

Every seqno holds something. One that no stream was shown, below the end of a snapshot that would
have shown it, held by then

    an older version of a key      where a later one's revision leaves room for it: de-duplicated
    a purged tombstone             at or below the purge seqno: of a key that was shown and is gone
    something hidden               else (another collection, a prepare, an abort)

and one that no snapshot reached may hold any document: nobody was to see it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dcp.types import U64_MAX
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
    """Revisions of a key that were shown to nobody: they lie in (after, before)."""

    key: bytes
    after: int
    before: int
    next_rev: int
    left: int


def complete(
    shown: Mapping[int, Item], seqnos: range, purge_seqno: int, snapshots: Sequence[Snapshot]
) -> tuple[Item, ...]:
    """Return the items of all ``seqnos``, the given ones among them."""
    rooms = _rooms(shown)
    gone = _gone(shown, snapshots, purge_seqno)
    items: list[Item] = []
    for seqno in seqnos:
        found = shown.get(seqno)
        items.append(found or _unseen(seqno, purge_seqno, snapshots, rooms, gone))
    return tuple(items)


def _rooms(shown: Mapping[int, Item]) -> list[_Room]:
    by_key: dict[tuple[int, bytes], list[Item]] = defaultdict(list)
    for seqno in sorted(shown):
        item = shown[seqno]
        if item.what is What.DOCUMENT:
            by_key[item.collection_id, item.key].append(item)
    rooms = []
    for (_, key), versions in by_key.items():
        after, rev = 0, 0
        for version in versions:
            left = version.rev - rev - 1
            if left > 0:
                rooms.append(_Room(key, after, version.seqno, rev + 1, left))
            after, rev = version.seqno, version.rev
    return sorted(rooms, key=lambda room: room.before)


def _gone(
    shown: Mapping[int, Item], snapshots: Sequence[Snapshot], purge_seqno: int
) -> list[tuple[int, Item]]:
    """Keys that a snapshot should have shown and did not: (deleted above this seqno, the item)."""
    last = {item.key: seqno for seqno, item in sorted(shown.items())}
    return [
        (seqno, item)
        for seqno, item in sorted(shown.items())
        if purge_seqno
        and item.what is What.DOCUMENT
        and last[item.key] == seqno
        and any(one.after < seqno <= one.up_to and seqno not in one.shown for one in snapshots)
    ]


def _unseen(
    seqno: int,
    purge_seqno: int,
    snapshots: Sequence[Snapshot],
    rooms: list[_Room],
    gone: list[tuple[int, Item]],
) -> Item:
    reaching = [one.end for one in snapshots if one.after < seqno <= one.up_to]
    replaced_by = min(reaching, default=U64_MAX)
    if seqno <= purge_seqno:
        for index, (after, item) in enumerate(gone):
            if after < seqno:
                del gone[index]
                return Item(seqno, item.key, rev=item.rev + 1, opcode=_DELETION)
    for room in rooms:
        if room.left and room.after < seqno < room.before <= replaced_by:
            room.left -= 1
            room.next_rev += 1
            return Item(seqno, room.key, rev=room.next_rev - 1, opcode=_MUTATION, value=b"{}")
    if seqno <= purge_seqno:
        return Item(seqno, b"purged %d" % seqno, opcode=_DELETION)
    what = What.HIDDEN if reaching else What.DOCUMENT
    return Item(seqno, b"unseen %d" % seqno, what, opcode=_MUTATION, value=b"{}")
