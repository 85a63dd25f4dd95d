"""Collections of which a recording tells, though no stream was shown where they begin."""

import json
from collections.abc import Iterable, Iterator

from dcp.producer.manifest import DEFAULT_ID
from dcp.wire import messages as m
from dcp.wire.system_event import CollectionBegun, ScopeCreated
from dcp.wire.vocabulary import Opcode, Status
from tests.producer_conformance.sightings import Item, VbucketSightings, What, next_of

_FEW = 1000
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
        default_high = next_of(about.default_high, line) or 0
        first = max(default_high + 1, high - _FEW)
        begun = CollectionBegun(1, DEFAULT_ID, collection, b"unseen")
        shown[first] = Item(first, begun.name, What.SYSTEM_EVENT, collection, event=begun)
        for seqno in range(first + 1, high + 1):
            key = b"unseen %d" % seqno
            mutation = int(Opcode.DCP_MUTATION)
            shown[seqno] = Item(seqno, key, collection_id=collection, opcode=mutation, value=b"{}")


def begun_by_filters(
    shown: dict[int, Item], granted: Iterable[tuple[int, m.StreamRequest, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the lines of requests that were granted, and where what their filters name had begun.

    A collection that begins again under its id was flushed: the first time counts. One that no
    stream was shown to begin does so before all that was shown.
    """
    for line, request, _ in granted:
        for collection, scope in named_by(request.value):
            begun = [seqno for seqno, item in shown.items() if _begins(item, collection, scope)]
            if not begun and DEFAULT_ID not in (collection, scope):
                begun = _begin_before_all(shown, collection, scope)
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


def _begin_before_all(
    shown: dict[int, Item], collection: int | None, scope: int | None
) -> list[int]:
    seqno = min(shown, default=2) - 1
    if seqno < 1:
        return []
    if collection is None:
        created = ScopeCreated(1, scope or 0, b"unseen %d" % seqno)
        shown[seqno] = Item(seqno, created.name, What.SYSTEM_EVENT, event=created)
    else:
        begun = CollectionBegun(1, DEFAULT_ID, collection, b"unseen %d" % seqno)
        shown[seqno] = Item(seqno, begun.name, What.SYSTEM_EVENT, collection, event=begun)
    return [seqno]
