"""Where versions of a key lay that nobody was shown: a later revision leaves room for them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.producer_conformance.sightings import Item, Snapshot, What


@dataclass(slots=True)
class Room:
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


def rooms_in(shown: Mapping[int, Item], snapshots: Sequence[Snapshot]) -> list[Room]:
    by_key: dict[tuple[What, int, bytes], list[Item]] = defaultdict(list)
    prepared: dict[tuple[What, int, bytes], list[Item]] = defaultdict(list)
    for seqno in sorted(shown):
        item = shown[seqno]
        if item.what is What.DOCUMENT:
            by_key[item.what, item.collection_id, item.key].append(item)
        elif item.what in (What.PREPARE, What.ABORT):
            prepared[What.PREPARE, item.collection_id, item.key].append(item)
    rooms = []
    for of, versions in by_key.items():
        after, rev = 0, 0
        for version in versions:
            if not version.rev:  # a request made it: the one after that of the version before
                after, rev = version.seqno, rev + 1
                continue
            places = version.rev - rev - 1
            if places > 0:
                held = _held_until(snapshots, after, of[1], version.seqno)
                rooms.append(Room(of, after, version.seqno, held, rev + 1, places))
            after, rev = version.seqno, version.rev
    return [
        *sorted(rooms, key=lambda room: room.before),
        *sorted(_prepared_rooms(prepared, snapshots), key=lambda room: room.before),
    ]


def _prepared_rooms(
    prepared: Mapping[tuple[What, int, bytes], Sequence[Item]], snapshots: Sequence[Snapshot]
) -> Iterator[Room]:
    """Yield where prepares and aborts of a key lay that a later one replaced.

    However many: what is given up takes no revision.
    """
    for of, items in prepared.items():
        after = 0
        for item in items:
            held = _held_until(snapshots, after, of[1], item.seqno)
            yield Room(of, after, item.seqno, held, 1, item.seqno)
            after = item.seqno


def _held_until(snapshots: Sequence[Snapshot], after: int, collection_id: int, before: int) -> int:
    """Return up to where the version at ``after`` was the newest for certain."""
    held = max((one.end for one in snapshots if after in one.shown), default=0)
    return max(held, _whole_up_to(snapshots, collection_id, before))


def _whole_up_to(snapshots: Iterable[Snapshot], collection_id: int, before: int) -> int:
    """Return up to where a collection was shown whole, by snapshots that end before a seqno."""
    return max(
        (
            one.up_to
            for one in snapshots
            if collection_id in one.collections and (one.end or one.up_to) < before
        ),
        default=0,
    )


def filled(rooms: Sequence[Room], latest: Mapping[int, int | None]) -> Sequence[Room]:
    """Put as many seqnos into rooms as there are places for, those with a bound first.

    Each may go into several rooms: one that is in the way moves on to another of its own.
    """

    def suits(seqno: int, room: Room) -> bool:
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
