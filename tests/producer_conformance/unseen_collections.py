"""Collections of which a recording tells, though no stream was shown where they begin."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dcp.producer.model.manifest import DEFAULT_ID
from dcp.wire import messages as m
from dcp.wire.system_event import CollectionBegun, ScopeCreated
from dcp.wire.vocabulary import Opcode, Status
from tests.producer_conformance.sightings import (
    Item,
    Snapshot,
    VbucketSightings,
    What,
    next_of,
)

_FEW = 1000
_ANY_COLLECTION = 8
"""The first id that a server gives."""
FILTER_WAS_TAKEN = frozenset(
    {
        Status.SUCCESS,
        Status.ROLLBACK,
        Status.KEY_EEXISTS,
        Status.ENOMEM,
        Status.DCP_STREAM_ID_INVALID,
    }
)
"""A stream request that is answered so names nothing that there is not: that is looked at first."""


def unseen_collections(
    shown: dict[int, Item], told: Iterable[tuple[int, int, int]], about: VbucketSightings
) -> None:
    """Let there be a collection of which nothing but its newest seqno was ever told.

    Where nothing of it was shown it begins right after what the default collection has.
    """
    for line, collection, high in told:
        if high in shown:
            continue
        before = [seqno for seen, seqno in about.default_high if seen <= line]
        default_high = max(before) if before else next_of(about.default_high, line) or 0
        first = min(high, max(default_high + 1, high - _FEW))
        begun = CollectionBegun(1, DEFAULT_ID, collection, b"unseen")
        shown[first] = Item(first, begun.name, What.SYSTEM_EVENT, collection, event=begun)
        for seqno in range(first + 1, high + 1):
            key = b"unseen %d" % seqno
            mutation = int(Opcode.DCP_MUTATION)
            shown[seqno] = Item(seqno, key, collection_id=collection, opcode=mutation, value=b"{}")


def beyond_default(
    about: VbucketSightings, shown: Mapping[int, Item]
) -> Iterator[tuple[int, int, int]]:
    """Yield lines, an id for some collection, and its newest seqno, where the default one is older.

    For what is visible above the default collection's newest seqno is of another one.
    """
    for line, visible in about.visible:
        default_high = next_of(about.default_high, line)
        if default_high is not None and default_high < visible and visible not in shown:
            yield line, _ANY_COLLECTION, visible


def begun_by_filters(
    shown: dict[int, Item],
    granted: Iterable[tuple[int, m.StreamRequest, int]],
    known: Iterable[tuple[int, int]],
    snapshots: Sequence[Snapshot],
    proved_before: Callable[[int], int],
) -> Iterator[tuple[int, int]]:
    """Yield the lines of requests that were granted, and where what they name had begun.

    That is what a filter names, or the collection of a key. A collection that begins again under
    its id was flushed: the first time counts. One that no stream was shown to begin does so where
    none would have been shown it, before all that was shown if possible.
    """
    of_filters = ((line, *each) for line, request, _ in granted for each in named_by(request.value))
    of_keys = ((line, collection, None) for line, collection in known)
    for line, collection, scope in sorted([*of_filters, *of_keys], key=lambda one: one[0]):
        begun = [seqno for seqno, item in shown.items() if _begins(item, collection, scope)]
        if not begun and DEFAULT_ID not in (collection, scope):
            begun = _begin_unseen(shown, collection, scope, snapshots, proved_before(line))
        yield from ((line, seqno) for seqno in sorted(begun)[:1])


def named_by(value: bytes) -> Iterator[tuple[int | None, int | None]]:
    """Yield the collections, or the scope, that a filter names."""
    try:
        tree = json.loads(value) if value else {}
        yield from ((int(name, 16), None) for name in tree.get("collections", ()))
        if "scope" in tree:
            yield None, int(tree["scope"], 16)
    except (ValueError, AttributeError, TypeError):
        return  # what was granted though it is no filter will be compared


def _begins(item: Item, collection: int | None, scope: int | None) -> bool:
    match item.event:
        case CollectionBegun():
            return item.event.collection_id == collection
        case ScopeCreated():
            return item.event.scope_id == scope
    return False


def _begin_unseen(
    shown: dict[int, Item],
    collection: int | None,
    scope: int | None,
    snapshots: Sequence[Snapshot],
    proved: int,
) -> list[int]:
    seqno: int | None = min(shown, default=2) - 1
    if not seqno:
        holds = (
            at for at, item in shown.items() if collection and item.collection_id == collection
        )
        last = min([max(proved, *shown) + 1, *holds])
        free = (at for at in range(last, 0, -1) if at not in shown)
        below = [at for at in free if not _would_be_shown(at, snapshots)]
        seqno = next((at for at in below if at <= proved), min(below, default=None))
    if seqno is None:
        return []
    if collection is None:
        created = ScopeCreated(1, scope or 0, b"unseen %d" % seqno)
        shown[seqno] = Item(seqno, created.name, What.SYSTEM_EVENT, event=created)
    else:
        begun = CollectionBegun(1, DEFAULT_ID, collection, b"unseen %d" % seqno)
        shown[seqno] = Item(seqno, begun.name, What.SYSTEM_EVENT, collection, event=begun)
    return [seqno]


def _would_be_shown(seqno: int, snapshots: Iterable[Snapshot]) -> bool:
    return any(one.after < seqno <= one.up_to and not one.is_legacy for one in snapshots)
