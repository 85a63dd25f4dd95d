"""What snapshots should have shown, by all that is known, and did not."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dcp.types import END_OF_TIME
from dcp.wire.vocabulary import Opcode
from tests.producer_conformance.sightings import Item, Snapshot, What

MOST_UNSEEN: Final = 1000
"""Seqnos in a row of which it is asked what each of them held."""


def unseen_document(seqno: int, collection_id: int = 0) -> Item:
    """Return a document that nobody was to see."""
    key = b"unseen %d" % seqno
    mutation = int(Opcode.DCP_MUTATION)
    return Item(seqno, key, collection_id=collection_id, opcode=mutation, value=b"{}")


def missed_by_all(snapshots: Sequence[Snapshot], shown: Mapping[int, Item]) -> list[list[Item]]:
    """Return for each snapshot what it should have shown, by all that is known, and did not.

    That is the newest version of a key up to the snapshot's end, within what the stream had got to.
    """
    seqnos = sorted(shown)
    following: dict[int, int] = {}
    last: dict[tuple[int, bytes], int] = {}
    for seqno in seqnos:
        of = shown[seqno].collection_id, shown[seqno].key
        if of in last:
            following[last[of]] = seqno
        last[of] = seqno
    return [
        [
            shown[seqno]
            for seqno in seqnos[bisect_right(seqnos, one.after) : bisect_right(seqnos, one.up_to)]
            if seqno not in one.shown
            and shown[seqno].what is What.DOCUMENT
            and not (one.is_legacy and shown[seqno].collection_id)
            and following.get(seqno, END_OF_TIME) > one.end
        ]
        for one in snapshots
    ]


def replaced_in_the_rest(
    snapshots: Sequence[Snapshot], shown: Mapping[int, Item]
) -> Iterator[Item]:
    """Yield versions in the rest of snapshots that were cut off.

    For what such a snapshot left out was replaced there.
    """
    taken = set(shown)
    for one, missed in zip(snapshots, missed_by_all(snapshots, shown), strict=True):
        rest = range(one.up_to + 1, min(one.end, one.up_to + MOST_UNSEEN) + 1)
        free = [seqno for seqno in rest if seqno not in taken]
        for item, seqno in zip(missed, free, strict=False):
            taken.add(seqno)
            rev = item.rev + 1 if item.rev else 0
            yield replace(unseen_document(seqno, item.collection_id), key=item.key, rev=rev)
