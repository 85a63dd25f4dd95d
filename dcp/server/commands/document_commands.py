"""Reads documents over the wire: GET."""

from collections.abc import Callable
from functools import cache
from typing import Final

from dcp.errors import FrameError
from dcp.server.commands.refusals import refuse_unknown_id
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.model.refused_error import RefusedError
from dcp.server.model.versions import Version
from dcp.server.vbucket.documents import check_key
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.leb128 import split_collection_key
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode, Status

Answer = Callable[[Vbucket, bytes, int], None]

_BIT_OF_FEATURE: Final = {
    HelloFeature.JSON: Datatype.JSON,
    HelloFeature.SNAPPY: Datatype.SNAPPY,
    HelloFeature.XATTR: Datatype.XATTR,
}


def get(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    now = session.bucket.now()

    def answer(vbucket: Vbucket, key: bytes, collection: int) -> None:
        reply_document(session, frame, vbucket.documents.get(key, now, collection=collection))

    on_document(session, frame, answer)


def reply_document(session: Session, frame: Frame, version: Version) -> None:
    """Answer GET with a document's body, without its xattrs."""
    answer = m.GetAnswer(version.flags, version.body)
    shown = version.datatype & Datatype.JSON & datatypes_of(session.login.features)
    session.reply(frame, answer, cas=version.cas, datatype=shown)


def on_document(session: Session, frame: Frame, answer: Answer) -> None:
    """Call ``answer`` with the request's vbucket, key and collection, or refuse the request."""
    collection, key = DEFAULT_ID, frame.key
    try:
        # With Collections, a key begins with its collection's id in LEB128; only the shortest
        # encoding is valid. Without, the key is in the default collection.
        if HelloFeature.COLLECTIONS in session.login.features:
            collection, key = split_collection_key(key)
        check_key(key, collection)
    except (FrameError, RefusedError) as error:
        session.refuse(frame, Status.EINVAL, str(error))
        return
    vbucket = session.bucket.table.active(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
        return
    try:
        answer(vbucket, key, collection)
    except RefusedError as error:
        if error.status is Status.UNKNOWN_COLLECTION:
            refuse_unknown_id(session, frame, error.status)
        else:
            session.refuse(frame, error.status)


# Servers grant few sets of features, so the cache stays small.
@cache
def datatypes_of(features: frozenset[int]) -> int:
    return sum(bit for feature, bit in _BIT_OF_FEATURE.items() if feature in features)


DOCUMENT_COMMANDS: Final[dict[int, CommandHandler]] = {
    Opcode.GET: CommandHandler(Access.BUCKET, get),
}
