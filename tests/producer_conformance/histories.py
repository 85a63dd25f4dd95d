"""One branch's items as a whole: what was shown, and what the seqnos that nobody was shown held.

What was shown is put in as it was shown. The seqnos between them held something, too, and some of
them must: the newest one at a time, for instance. Such a seqno, below the end of a snapshot that
would have shown it, held by then

    a prepare                      that a commit or abort which was shown completed
    an older version of a key      where a later one's revision leaves room for it: de-duplicated
    an older prepare of a key      where a later prepare or abort of it was shown
    something of a collection      that was dropped since, within the same snapshot
    a purged tombstone             at or below the purge seqno: of a key that was shown and is gone
    something hidden               of another collection, a prepare, an abort, a purged tombstone:
                                   where the recording shows that there are such, where several
                                   seqnos have no other explanation, before all that was shown, and
                                   behind the end of a snapshot that left it out
    a document                     else, for a single one that only one stream passed over: it is
                                   shown, and that is the difference

and one that no snapshot reached may hold any document: nobody was to see it. Between two known
seqnos that lie far apart (``MOST_UNSEEN``) nothing is put in: no recording lost so much, so it was
all replaced or purged.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Final

from dcp.wire.system_event import CollectionBegun, CollectionEnded, ScopeCreated, ScopeDropped
from dcp.wire.vocabulary import Opcode
from tests.producer_conformance.completions import unseen_prepares
from tests.producer_conformance.missed_items import MOST_UNSEEN, missed_by_all, unseen_document
from tests.producer_conformance.sightings import Item, Snapshot, What
from tests.producer_conformance.unseen_versions import filled, rooms_in

_MUTATION = int(Opcode.DCP_MUTATION)
_DELETION = int(Opcode.DCP_DELETION)
_SEVERAL: Final = 2
"""A recording that lost a frame lacks one seqno; a bucket that hides things lacks more."""

_LOST: Final = b"lost from the recording "

Heard = Callable[[int], set[frozenset[int] | None]]


def complete(
    shown: Mapping[int, Item],
    base: int,
    reached: Iterable[int],
    purge_seqno: int,
    snapshots: Sequence[Snapshot],
    *,
    hides: bool = True,
    heard: Heard = lambda _: set(),
) -> tuple[Item, ...]:
    """Return the items above ``base``, the given ones among them, in the order of seqnos.

    There is something at every seqno that was ``reached``. ``hides``: there are things that not
    every stream is shown; without it what is shown nowhere would be a document that got lost.
    ``heard``: of which collections streams waited to hear when a seqno came (None: of all).
    """
    found = dict(shown)
    missed = {item.seqno: item for each in missed_by_all(snapshots, shown) for item in each}
    gone = [item for _, item in sorted(missed.items()) if item.opcode != _DELETION]
    unseen = _unseen(shown, base, reached)
    for seqno in unseen if gone else ():
        item = next((item for item in gone if item.seqno < seqno <= purge_seqno), None)
        if item is not None:
            gone.remove(item)
            found[seqno] = replace(_tombstone(seqno, item.key), rev=item.rev + 1)
    for prepare in unseen_prepares(shown, base):
        found.setdefault(prepare.seqno, prepare)
    found |= _replaced_events([seqno for seqno in unseen if seqno not in found], shown)
    if purge_seqno in unseen and purge_seqno not in found:
        found[purge_seqno] = _tombstone(purge_seqno, b"purged %d" % purge_seqno)
    latest = _latest([seqno for seqno in unseen if seqno not in found], snapshots)
    for room in filled(rooms_in(shown, snapshots), latest):
        for rev, seqno in enumerate(sorted(room.taken), room.first_rev):
            what, collection_id, key = room.of
            item = Item(seqno, key, what, collection_id, rev, opcode=_MUTATION, value=b"{}")
            found[seqno] = item
    left = {seqno: end for seqno, end in latest.items() if seqno not in found}
    found |= _unexplained(left, shown, purge_seqno, snapshots, heard, hides=hides)
    return tuple(found[seqno] for seqno in sorted(found) if seqno > base)


def _replaced_events(unseen: Sequence[int], shown: Mapping[int, Item]) -> dict[int, Item]:
    """Return where collections and scopes began whose end alone is left: it replaced that."""
    found: dict[int, Item] = {}
    begun: set[tuple[type, int]] = set()
    for seqno, item in sorted(shown.items()):
        match item.event:
            case CollectionBegun():
                begun.add((CollectionEnded, item.event.collection_id))
                continue
            case ScopeCreated():
                begun.add((ScopeDropped, item.event.scope_id))
                continue
            case CollectionEnded(uid, scope, collection):
                of: tuple[type, int] = CollectionEnded, collection
                made: CollectionBegun | ScopeCreated = CollectionBegun(
                    max(uid - 1, 1), scope, collection, b"unseen %d" % seqno
                )
            case ScopeDropped(uid, scope):
                of = ScopeDropped, scope
                made = ScopeCreated(max(uid - 1, 1), scope, b"unseen %d" % seqno)
            case _:
                continue
        at = max((one for one in unseen if one < seqno and one not in found), default=None)
        if of not in begun and at is not None:
            begun.add(of)
            found[at] = Item(at, made.name, What.SYSTEM_EVENT, event=made)
    return found


def _latest(unseen: Sequence[int], snapshots: Sequence[Snapshot]) -> dict[int, int | None]:
    """Return the earliest end of a snapshot that got beyond each unseen seqno, without showing it.

    What replaced it lies at or below that. None where no snapshot got there.
    """
    coming = sorted(snapshots, key=lambda one: one.after, reverse=True)
    open_ones: list[tuple[int, int]] = []
    found: dict[int, int | None] = {}
    for seqno in unseen:
        while coming and coming[-1].after < seqno:
            one = coming.pop()
            heappush(open_ones, (one.end, one.up_to))
        while open_ones and open_ones[0][1] < seqno:
            heappop(open_ones)
        found[seqno] = open_ones[0][0] if open_ones else None
    return found


def _unexplained(
    left: Mapping[int, int | None],
    shown: Mapping[int, Item],
    purge_seqno: int,
    snapshots: Sequence[Snapshot],
    heard: Heard,
    *,
    hides: bool,
) -> dict[int, Item]:
    """Return what is put at seqnos for which no version of a key that was shown has room."""
    first_shown = min(shown, default=0)
    tails = [(one.end, one.stood_at) for one in snapshots]
    visible = {one.end for one in snapshots if one.after == one.end}
    cut = {one.end: one for one in snapshots if one.lacks_its_end}
    found: dict[int, Item] = {}
    hidden: list[int] = []
    for seqno, end in left.items():
        dropped = _dropped_since(seqno, end, shown)
        if seqno <= purge_seqno:
            found[seqno] = _tombstone(seqno, b"purged %d" % seqno)
        elif seqno not in cut and any(low < seqno <= high for low, high in tails):
            hidden.append(seqno)
            hides = True
        elif end is not None and dropped is None:
            hidden.append(seqno)
        elif end is None and seqno not in cut and heard(seqno):
            whole = {one.collections for one in snapshots if one.collections and one.up_to >= seqno}
            visible_here = seqno in visible
            found[seqno] = _unheard(seqno, heard(seqno) | whole, shown, is_visible=visible_here)
        else:
            found[seqno] = unseen_document(seqno, dropped or 0)
            if seqno in cut and not dropped:
                found[seqno] = _heard_by(cut[seqno], seqno, shown)
    hides |= len([seqno for seqno in hidden if seqno > first_shown]) >= _SEVERAL
    for seqno in hidden:
        is_lost = not hides and seqno > first_shown and not _may_be_hidden(seqno, snapshots)
        found[seqno] = _lost(seqno) if is_lost else _hidden(seqno)
    return found


def _may_be_hidden(seqno: int, snapshots: Sequence[Snapshot]) -> bool:
    """Whether several streams were not shown what is there: no recording loses it so often.

    Or what replaced it may lie in the rest of a snapshot that was cut off.
    """
    passed = [one for one in snapshots if one.after < seqno <= one.up_to]
    is_cut_off = all(one.up_to < one.end for one in passed)
    return is_cut_off or len({one.born for one in passed}) >= _SEVERAL


def _lost(seqno: int) -> Item:
    return replace(unseen_document(seqno), key=b"%s%d" % (_LOST, seqno))


def lost_in(items: Iterable[Item]) -> int:
    """Return how many seqnos a recording must have lost."""
    return sum(item.key.startswith(_LOST) and item.value == b"{}" for item in items)


def _unheard(
    seqno: int,
    heard: Collection[frozenset[int] | None],
    shown: Mapping[int, Item],
    *,
    is_visible: bool,
) -> Item:
    """Return what those that waited are not shown: of another collection, or hidden from all."""
    collections = [0, *_collections_at(seqno, shown)]
    quiet = (each for each in collections if not any(one is None or each in one for one in heard))
    collection = next(quiet, None)
    if collection is None:
        return unseen_document(seqno) if is_visible else _hidden(seqno)
    return unseen_document(seqno, collection)


def _heard_by(one: Snapshot, seqno: int, shown: Mapping[int, Item]) -> Item:
    """Return something that the stream of a snapshot is shown, at its end."""
    if one.hears_scope is None:
        return unseen_document(seqno, 0 if one.hears is None or 0 in one.hears else min(one.hears))
    if not one.hears_scope:
        return unseen_document(seqno)
    known = _collections_at(seqno, shown)
    begun = [each.event for each in shown.values() if isinstance(each.event, CollectionBegun)]
    uid = max((each.manifest_uid for each in begun), default=0) + 1
    mine = {each.collection_id for each in begun if each.scope_id == one.hears_scope}
    collection = next((each for each in known if each in mine), None)
    if collection is not None:
        return unseen_document(seqno, collection)
    dropped = ScopeDropped(uid, one.hears_scope)
    return Item(seqno, b"", What.SYSTEM_EVENT, event=dropped)


def _hidden(seqno: int) -> Item:
    return Item(seqno, b"hidden %d" % seqno, What.HIDDEN)


def _collections_at(seqno: int, shown: Mapping[int, Item]) -> list[int]:
    """Return the collections that there are at a seqno, beside the default one."""
    found: list[int] = []
    for _, item in sorted(shown.items()):
        if item.seqno > seqno:
            break
        match item.event:
            case CollectionBegun():
                found.append(item.event.collection_id)
            case CollectionEnded() if item.event.collection_id in found:
                found.remove(item.event.collection_id)
    return found


def _unseen(shown: Mapping[int, Item], base: int, reached: Iterable[int]) -> list[int]:
    """Return at which seqnos something is to be found that was not shown, ascending.

    All between what is known, but not where that is very many: those are left empty.
    """
    known = sorted({base, *shown, *(seqno for seqno in reached if seqno > base)})
    found: list[int] = []
    for low, high in pairwise(known):
        if high - low <= MOST_UNSEEN:
            found += range(low + 1, high)
        if high not in shown:
            found.append(high)
    return found


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


def _tombstone(seqno: int, key: bytes) -> Item:
    return Item(seqno, key, opcode=_DELETION)
