"""What a client's own KV requests show, on a connection that was recorded.

A write that was answered with success goes to our producer as the request that it was, so that it
writes what the recorded server wrote: at the same seqno, which is the one that was told, or that of
the item with its CAS, or else the next one; and under the same CAS (``subject.py``, ``align``).
A document that was read, and that no stream showed and no request wrote, is there from the start.
"""

import json
from dataclasses import replace
from typing import Final

from dcp.errors import FrameError
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import RequestInfo, decode_frame_infos
from dcp.wire.leb128 import split_collection_key
from dcp.wire.vocabulary import Datatype, Opcode, Status, VbucketState
from tests.producer_conformance.sightings import Item, Presence, VbucketSightings, Written

WRITES: Final = frozenset({Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.TOUCH})
_NEEDS: Final = (Opcode.REPLACE, Opcode.DELETE, Opcode.TOUCH)
_IS_THERE: Final[dict[tuple[int, int], bool]] = {
    **{(opcode, Status.SUCCESS): True for opcode in _NEEDS},
    **{(opcode, Status.KEY_ENOENT): False for opcode in (*_NEEDS, Opcode.GET)},
    (Opcode.ADD, Status.SUCCESS): False,
    (Opcode.ADD, Status.KEY_EEXISTS): True,
}
"""What answers say of the document that there was before."""
_ACTIVE: Final = frozenset({VbucketState.ACTIVE})


def take_document_answer(
    about: VbucketSightings,
    asked: tuple[int, Frame],
    answer: Frame,
    answered_line: int,
    *,
    collections: bool,
) -> None:
    """Take the answer to a KV request of ``WRITES``, or to a GET."""
    line, request = asked
    about.states.append((line, _ACTIVE))
    collection_id, key = split_collection_key(request.key) if collections else (0, request.key)
    if collection_id and answer.status != Status.UNKNOWN_COLLECTION:
        about.known_collections.append((line, collection_id))
    is_there = _IS_THERE.get((request.opcode, answer.status))
    if is_there is not None:
        about.presence.append(Presence(line, request.opaque, collection_id, key, is_there))
    if answer.status != Status.SUCCESS:
        return
    asked_for, told = decode(request), decode(answer)
    item = Item(
        0, key, collection_id=collection_id, rev=0, cas=answer.cas, opcode=Opcode.DCP_MUTATION
    )
    if isinstance(told, m.GetAnswer):
        about.read.append((line, _with_body(item, told.value, answer.datatype, told.flags)))
        return
    if isinstance(told, m.MutationAnswer) and told.vb_uuid is not None:
        about.uuids.append((line, told.vb_uuid))
    if request.opcode == Opcode.TOUCH and _was_there(about, item, line):
        return  # it had that expiry already: nothing was written
    is_durable = _is_durable(request)
    seqno = told.seqno if isinstance(told, m.MutationAnswer) else None
    if seqno is not None and is_durable:
        seqno += 1  # told is the prepare's
    about.written.append(
        Written(
            line,
            request.opaque,
            answered_line,
            _item_of(item, request, asked_for, seqno or 0),
            getattr(asked_for, "expiry", 0),
            is_durable,
        )
    )


def _was_there(about: VbucketSightings, item: Item, line: int) -> bool:
    """Whether a document with this CAS was written, read or shown before."""
    known = [
        *(each.item for each in about.written),
        *(read for _, read in about.read),
        *(shown for seen, shown, _ in about.items if seen < line),
    ]
    same = (item.collection_id, item.key, item.cas)
    return any((each.collection_id, each.key, each.cas) == same for each in known)


def _item_of(item: Item, request: Frame, body: m.Body, seqno: int) -> Item:
    """Return what a request makes, as far as the request says."""
    if isinstance(body, m.Store):
        item = _with_body(item, body.value, request.datatype, body.flags)
    deletes = request.opcode == Opcode.DELETE
    opcode = Opcode.DCP_DELETION if deletes else Opcode.DCP_MUTATION
    return replace(item, seqno=seqno, opcode=opcode)


def _with_body(item: Item, value: bytes, datatype: int, flags: int) -> Item:
    if not datatype & (Datatype.SNAPPY | Datatype.XATTR) and _is_json(value):
        datatype |= Datatype.JSON
    return replace(item, value=value, datatype=datatype, flags=flags)


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _is_durable(request: Frame) -> bool:
    try:
        infos = decode_frame_infos(request.framing_extras)
    except FrameError:
        return False
    return any(info.id == RequestInfo.DURABILITY for info in infos)
