"""At which seqnos recorded requests wrote, of which few are told: the CAS values say it.

A vbucket gives CAS values in the order of its seqnos (kv_engine ``engines/ep/src/hlc.h``). So a
write comes behind all that was shown with smaller ones, and before all with greater ones. Some may
be out of that order, written by other clusters: the longest row that is in order counts. Within
such a stretch a write comes as early as can be, behind what was proved when it was asked for; one
before all that was ever shown comes right before that.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tests.producer_conformance.sightings import Item, What, Written

_NO_CAS = 1
"""Items of which no CAS was shown have this or less."""


def place(
    written: Sequence[Written],
    shown: Mapping[int, Item],
    base: int,
    proved_before: Callable[[int], int],
) -> list[tuple[int, Written]]:
    """Return all writes with their seqnos, in the order of CAS values."""
    by_cas = {
        (item.collection_id, item.key, item.cas): seqno
        for seqno, item in shown.items()
        if item.what is What.DOCUMENT
    }
    ordered = sorted(written, key=lambda each: (each.item.cas, each.line))
    known = [
        each.item.seqno or by_cas.get((each.item.collection_id, each.item.key, each.item.cas))
        for each in ordered
    ]
    told = ((each.item.cas, seqno) for each, seqno in zip(ordered, known, strict=True) if seqno)
    items = ((item.cas, seqno) for seqno, item in shown.items() if item.cas > _NO_CAS)
    row = _longest_row({*told, *items})
    taken = {*shown, *(seqno for seqno in known if seqno)}
    placed: list[tuple[int, Written]] = []
    last = 0
    for index, (each, told_seqno) in enumerate(zip(ordered, known, strict=True)):
        seqno = told_seqno
        if seqno is None:
            at = bisect_right(row, (each.item.cas, 0))
            low = row[at - 1][1] if at else base
            high = row[at][1] if at < len(row) else None
            proved = max(low, last, proved_before(each.line))
            seqno = _first_free(proved, _size(each), taken)
            if high is not None:
                more = _run(ordered[index:], known[index:], row[at][0])
                seqno = min(seqno, _last_free(high, more, taken))
        last = max(last, seqno)
        taken |= {seqno, seqno - _size(each) + 1}
        placed.append((seqno, each))
    return placed


def _size(each: Written) -> int:
    """A durable write is a prepare, and right behind it the document."""
    return 2 if each.is_durable else 1


def _run(ordered: Sequence[Written], known: Sequence[int | None], before_cas: int) -> list[int]:
    """Return the sizes of the writes from here on that come before a CAS."""
    sizes: list[int] = []
    for each, seqno in zip(ordered, known, strict=True):
        if seqno is not None or each.item.cas > before_cas:
            break
        sizes.append(_size(each))
    return sizes


def _first_free(behind: int, size: int, taken: Collection[int]) -> int:
    """Return the first seqno behind one that is free, with as many before it as it needs."""
    seqno = behind + size
    while any(place in taken for place in range(seqno - size + 1, seqno + 1)):
        seqno += 1
    return seqno


def _last_free(before: int, sizes: Sequence[int], taken: Collection[int]) -> int:
    """Return where the first of some writes lies that are the last ones before a seqno."""
    found = seqno = before
    for size in reversed(sizes):
        seqno -= 1
        while seqno > size and any(place in taken for place in range(seqno - size + 1, seqno + 1)):
            seqno -= 1
        found, seqno = seqno, seqno - size + 1
    return max(found, sizes[0])


def _longest_row(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest row of (cas, seqno) in which both rise."""
    ends: list[int] = []
    rows: list[int] = []
    ordered = sorted(pairs, key=lambda pair: (pair[0], -pair[1]))
    before: list[int | None] = []
    for index, (_, seqno) in enumerate(ordered):
        at = bisect_left(ends, seqno)
        before.append(rows[at - 1] if at else None)
        ends[at : at + 1] = [seqno]
        rows[at : at + 1] = [index]
    found: list[tuple[int, int]] = []
    index_or_none = rows[-1] if rows else None
    while index_or_none is not None:
        found.append(ordered[index_or_none])
        index_or_none = before[index_or_none]
    return found[::-1]
