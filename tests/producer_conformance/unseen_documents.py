"""Documents that no stream showed, of which the answers to recorded requests tell.

A document that was read is there, at a seqno that its CAS says, when it is read. One that was
replaced, touched or deleted was there before, one that was not found was not: then a tombstone that
was shown later had come, or one that nobody was shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dcp.wire.vocabulary import Opcode
from tests.producer_conformance.request_seqnos import place
from tests.producer_conformance.sightings import Item, Presence, Snapshot, What, Written

_MUTATION = int(Opcode.DCP_MUTATION)
_DELETION = int(Opcode.DCP_DELETION)


def read_documents(
    read: Sequence[tuple[int, Item]],
    shown: Mapping[int, Item],
    base: int,
    snapshots: Sequence[Snapshot],
) -> Iterator[tuple[int, Item]]:
    """Yield the documents that were read, as they were shown or as they must be, with the lines.

    Not those that a stream should have shown: then that will be the difference.
    """
    known = {
        (item.collection_id, item.key, item.cas): item
        for item in shown.values()
        if item.what is What.DOCUMENT
    }
    taken = dict(shown)
    for line, item in read:
        of = item.collection_id, item.key, item.cas
        if of in known:
            yield line, known[of]
            continue
        ((seqno, _),) = place([Written(line, 0, line, item)], taken, base, lambda _: 0)
        if seqno > 0 and _is_unseen(seqno, item, taken, snapshots):
            rev = _revision(seqno, item, taken)
            taken[seqno] = known[of] = replace(item, seqno=seqno, rev=rev)
            yield line, taken[seqno]


def _revision(seqno: int, item: Item, shown: Mapping[int, Item]) -> int:
    """Return the revision of a version that nobody was shown.

    It is not much below the next one's: by as many as may lie between them.
    """
    of = item.collection_id, item.key
    older = _newest(*of, seqno, shown)
    least = older.rev + 1 if older is not None and older.rev else 1
    later = (at for at, one in shown.items() if at > seqno and _is_version(one, *of))
    following = min(later, default=seqno)
    between = following - seqno - 1 - sum(seqno < at < following for at in shown)
    return max(least, shown[following].rev - 1 - between) if following > seqno else least


def missing_versions(
    presence: Presence,
    before: int,
    shown: Mapping[int, Item],
    base: int,
    snapshots: Sequence[Snapshot],
    *,
    may_come: bool = False,
) -> Item | None:
    """Return the version that was there before a seqno, by an answer, if nobody was shown it.

    ``may_come``: nobody tells of the seqnos from there on, but of later ones.

    None where what was shown explains the answer, or there is no room for another version.
    """
    newest = _newest(presence.collection_id, presence.key, before, shown)
    is_live = newest is not None and newest.opcode == _MUTATION
    if is_live is presence.is_there:
        return None
    item = Item(
        0,
        presence.key,
        collection_id=presence.collection_id,
        rev=newest.rev + 1 if newest is not None and newest.rev else 1,
        opcode=_MUTATION if presence.is_there else _DELETION,
        value=b"{}" if presence.is_there else b"",
    )
    low = newest.seqno if newest is not None else base
    free = (seqno for seqno in range(before - 1, low, -1) if seqno not in shown)
    found = next((one for one in free if _is_unseen(one, item, shown, snapshots)), None)
    if found is None and may_come:  # it had been written, of which nothing else tells by then
        following = min((at for at in shown if at >= before), default=before)
        later = (seqno for seqno in range(before, following) if seqno not in shown)
        found = next((one for one in later if _is_unseen(one, item, shown, snapshots)), None)
    if found is None and newest is None:
        found = min([base + 1, *shown]) - 1
        found = found if found and _is_unseen(found, item, shown, snapshots) else None
    return None if found is None else replace(item, seqno=found)


def came_later(presence: Presence, before: int, shown: Mapping[int, Item]) -> int | None:
    """Return the seqno of the tombstone that was there at an answer, though it was shown later."""
    if presence.is_there:
        return None
    newest = _newest(presence.collection_id, presence.key, before, shown)
    if newest is None or newest.opcode != _MUTATION:
        return None
    later = (item for seqno, item in sorted(shown.items()) if seqno > newest.seqno)
    of = presence.collection_id, presence.key
    following = next((item for item in later if _is_version(item, *of)), None)
    if following is None or following.opcode == _MUTATION:
        return None
    return following.seqno


def _newest(collection_id: int, key: bytes, before: int, shown: Mapping[int, Item]) -> Item | None:
    seqnos = (
        at for at, item in shown.items() if at < before and _is_version(item, collection_id, key)
    )
    newest = max(seqnos, default=None)
    return None if newest is None else shown[newest]


def _is_version(item: Item, collection_id: int, key: bytes) -> bool:
    return item.what is What.DOCUMENT and (item.collection_id, item.key) == (collection_id, key)


def _is_unseen(
    seqno: int, item: Item, shown: Mapping[int, Item], snapshots: Sequence[Snapshot]
) -> bool:
    """Whether no snapshot should have shown the item at a seqno: a later version replaced it."""
    later = (
        at
        for at, one in shown.items()
        if at > seqno and _is_version(one, item.collection_id, item.key)
    )
    replaced = min(later, default=None)
    return not any(
        _reaches(one, seqno, item) and (replaced is None or replaced > one.end) for one in snapshots
    )


def _reaches(one: Snapshot, seqno: int, item: Item) -> bool:
    """Whether a snapshot shows what there is at a seqno; a filter's first one has it all."""
    if one.collections:
        return item.collection_id in one.collections and seqno <= one.up_to
    return one.after < seqno <= one.up_to and not (one.is_legacy and item.collection_id)
