"""What commits and aborts, as messages of their own, say of the prepares that they complete.

A commit is the document that its prepare holds, at a seqno of its own: key, value, CAS, revision,
flags and expiry are the prepare's (kv_engine ``engines/ep/src/vbucket.cc``, ``VBucket::commit``).
Connections that did not ask for sync writes, and all that are served from disk, are shown it as a
mutation or deletion. So what any connection was shown of either is known of both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode
from tests.producer_conformance.merged_views import merged
from tests.producer_conformance.sightings import Item, What


def commit_item(message: m.Commit, collection_id: int, key: bytes) -> Item:
    """Return a commit as it is shown: a document of which nothing but the key is told."""
    return Item(
        message.commit_seqno,
        key,
        collection_id=collection_id,
        rev=0,
        opcode=int(Opcode.DCP_MUTATION),
        message=message,
    )


def merged_history(views: Mapping[int, Sequence[Item]]) -> dict[int, Item]:
    """Return one item for each seqno, a commit and its prepare from the views of both."""
    shown = {seqno: merged(views[seqno]) for seqno in sorted(views)}
    newest: dict[tuple[int, bytes], Item] = {}
    for seqno, item in list(shown.items()):
        of = item.collection_id, item.key
        if item.what is What.PREPARE:
            newest[of] = item
        if item.what is What.PREPARE or of not in newest:
            continue
        commit = shown[seqno] = _completing(item, newest[of], shown)
        prepare = _prepare_of(commit, shown)
        if prepare is None:
            continue
        as_documents = [_committed(view, commit) for view in views[prepare.seqno]]
        document = merged([*views[seqno], *as_documents])
        shown[seqno] = replace(document, message=commit.message)
        shown[prepare.seqno] = _prepared(document, prepare)
    return shown


def unseen_prepares(shown: Mapping[int, Item], base: int) -> Iterator[Item]:
    """Yield the prepares above ``base`` that were completed, though nobody was shown them."""
    for item in shown.values():
        match item.message:
            case m.Commit(prepared_seqno=seqno) | m.Abort(prepared_seqno=seqno):
                if base < seqno < item.seqno and seqno not in shown:
                    yield replace(item, seqno=seqno, what=What.PREPARE, message=None)


def _completing(item: Item, newest: Item, shown: Mapping[int, Item]) -> Item:
    """Return a commit or abort as one of a prepare that there can have been.

    That is the newest of its key that was shown, or a later one that nobody was shown.
    """
    if not isinstance(item.message, m.Commit | m.Abort):
        return item
    told = item.message.prepared_seqno
    if newest.seqno < told < item.seqno and told not in shown:
        return item
    return replace(item, message=replace(item.message, prepared_seqno=newest.seqno))


def _prepare_of(commit: Item, shown: Mapping[int, Item]) -> Item | None:
    """Return what a commit completes; None for other items, and where that was not shown."""
    if not isinstance(commit.message, m.Commit):
        return None
    return shown.get(commit.message.prepared_seqno)


def _committed(prepare: Item, commit: Item) -> Item:
    """Return a view of a prepare as the one of its document that it implies."""
    deletes = isinstance(prepare.message, m.Prepare) and bool(prepare.message.deleted)
    return replace(
        prepare,
        seqno=commit.seqno,
        what=What.DOCUMENT,
        opcode=int(Opcode.DCP_DELETION if deletes else Opcode.DCP_MUTATION),
        expiry=0 if deletes else prepare.expiry,
        delete_time=prepare.expiry if deletes else 0,
        message=commit.message,
    )


def _prepared(document: Item, prepare: Item) -> Item:
    """Return the prepare of a document; when it was deleted is each one's own."""
    deletes = document.opcode != Opcode.DCP_MUTATION
    return replace(
        document,
        seqno=prepare.seqno,
        what=What.PREPARE,
        opcode=prepare.opcode,
        expiry=prepare.expiry if deletes else document.expiry,
        delete_time=0,
        message=prepare.message,
    )
