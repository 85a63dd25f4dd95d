"""KV commands over the wire: GET, SET, ADD, REPLACE, DELETE, TOUCH.

With Collections negotiated a key begins with its collection's id in LEB128, of which only the
shortest encoding is taken; without, it is of the default collection. Values may carry only
datatypes that the connection negotiated. All but GET may ask for durability in framing extras.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Final, Protocol, cast

from dcp.errors import FrameError
from dcp.server.commands.manifest_commands import refuse_unknown_id
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.commands.sync_write_commands import write_durably
from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.model.values import without_xattrs
from dcp.server.model.versions import Version
from dcp.server.vbucket.documents import (
    CheckedValue,
    DocumentError,
    DocumentStore,
    check_key,
    examine,
)
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.leb128 import split_collection_key
from dcp.wire.snappy import inflate
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode, Status


class _Change(Protocol):
    """A command that changes the document of a key in a collection."""

    def __call__(
        self, documents: DocumentStore, /, key: bytes, collection: int, level: int
    ) -> Version:
        """Return the new version; with a durability ``level`` other than 0 it is a prepare."""


Answer = Callable[[Vbucket, bytes, int], None]

_SHORT_VALUE_BYTES: Final = 16 * 1024
_CAS_ALONE: Final = m.MutationAnswer()
_BIT_OF_FEATURE: Final = {
    HelloFeature.JSON: Datatype.JSON,
    HelloFeature.SNAPPY: Datatype.SNAPPY,
    HelloFeature.XATTR: Datatype.XATTR,
}


def get(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    """Answer the body of a document, without its xattrs."""
    now = session.bucket.now()

    def answer(vbucket: Vbucket, key: bytes, collection: int) -> None:
        version = session.bucket.writes.read_from(
            vbucket, DocumentStore.get, key, now, collection=collection
        )
        value, datatype = version.value, version.datatype
        plain = inflate(value) if datatype & Datatype.SNAPPY else value
        body = without_xattrs(plain) if datatype & Datatype.XATTR else plain
        shown = datatype & Datatype.JSON & _datatypes_of(session.login.features)
        session.reply(frame, m.GetAnswer(version.flags, body), cas=version.cas, datatype=shown)

    _on_document(session, frame, answer)


def store(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """SET, ADD and REPLACE; a long value is checked in steps before anything is stored."""
    request = cast("m.Store", body)
    if frame.datatype & ~_datatypes_of(session.login.features):
        session.refuse(frame, Status.EINVAL, "Request contains datatypes that were not negotiated")
    elif len(request.value) <= _SHORT_VALUE_BYTES:
        _change(session, frame, _storing(session, frame, request, request.value), _mutation_answer)
    else:
        session.examine(
            frame,
            examine(request.value, frame.datatype),
            lambda value: _change(
                session, frame, _storing(session, frame, request, value), _mutation_answer
            ),
        )


def _storing(
    session: Session, frame: Frame, request: m.Store, value: bytes | CheckedValue
) -> _Change:
    now = session.bucket.now()

    def command(documents: DocumentStore, key: bytes, collection: int, level: int) -> Version:
        if frame.opcode == Opcode.ADD:
            return documents.add(
                key,
                value,
                now,
                flags=request.flags,
                expiry=request.expiry,
                datatype=frame.datatype,
                collection=collection,
                level=level,
            )
        change = documents.set if frame.opcode == Opcode.SET else documents.replace
        return change(
            key,
            value,
            now,
            flags=request.flags,
            expiry=request.expiry,
            datatype=frame.datatype,
            cas=frame.cas,
            collection=collection,
            level=level,
        )

    return command


def delete(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    """Delete a document."""
    now = session.bucket.now()

    def command(documents: DocumentStore, key: bytes, collection: int, level: int) -> Version:
        return documents.delete(key, now, cas=frame.cas, collection=collection, level=level)

    _change(session, frame, command, _mutation_answer)


def touch(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Give a document a new expiry."""
    now = session.bucket.now()
    expiry = cast("m.Touch", body).expiry

    def command(documents: DocumentStore, key: bytes, collection: int, level: int) -> Version:
        return documents.touch(key, expiry, now, collection=collection, level=level)

    _change(session, frame, command, lambda *_: m.Empty())


def _change(
    session: Session,
    frame: Frame,
    command: _Change,
    answer_of: Callable[[Session, Vbucket, Version], m.Body],
) -> None:
    """Run ``command`` on the document that a request names, and answer with its new CAS."""

    def change(vbucket: Vbucket, key: bytes, collection: int) -> None:
        def reply(version: Version) -> None:
            session.reply(frame, answer_of(session, vbucket, version), cas=version.cas)

        requirement = session.requirement
        if requirement is None:
            reply(session.bucket.writes.write_to(vbucket, command, key, collection, 0))
        else:
            prepare = partial(command, key=key, collection=collection, level=requirement.level)
            write_durably(session, frame, vbucket, requirement, prepare, reply)

    _on_document(session, frame, change)


def _mutation_answer(session: Session, vbucket: Vbucket, version: Version) -> m.Body:
    """Return what is told of a write beside its CAS: the seqno if negotiated."""
    if HelloFeature.MUTATION_SEQNO in session.login.features:
        return m.MutationAnswer(vbucket.failover_log.current_uuid, version.seqno)
    return _CAS_ALONE


def _on_document(session: Session, frame: Frame, answer: Answer) -> None:
    """Resolve vbucket, logical key and collection of a request, and call ``answer`` with them."""
    collection, key = DEFAULT_ID, frame.key
    try:
        if HelloFeature.COLLECTIONS in session.login.features:
            collection, key = split_collection_key(key)
        check_key(key, collection)
    except (FrameError, DocumentError) as error:
        session.refuse(frame, Status.EINVAL, str(error))
        return
    vbucket = session.bucket.table.active(frame.vbucket, session.node)
    if vbucket is None:
        session.refuse_vbucket(frame)
        return
    try:
        answer(vbucket, key, collection)
    except DocumentError as error:
        if error.status is Status.UNKNOWN_COLLECTION:
            refuse_unknown_id(session, frame, error.status)
        else:
            session.refuse(frame, error.status)


@cache
def _datatypes_of(features: frozenset[int]) -> int:
    """Return the datatype bits that the features of a connection allow.

    Servers grant few sets of features, so the cache stays small.
    """
    return sum(bit for feature, bit in _BIT_OF_FEATURE.items() if feature in features)


DOCUMENT_COMMANDS: Final[dict[int, CommandHandler]] = {
    Opcode.GET: CommandHandler(Access.BUCKET, get),
    Opcode.SET: CommandHandler(Access.BUCKET, store),
    Opcode.ADD: CommandHandler(Access.BUCKET, store),
    Opcode.REPLACE: CommandHandler(Access.BUCKET, store),
    Opcode.DELETE: CommandHandler(Access.BUCKET, delete),
    Opcode.TOUCH: CommandHandler(Access.BUCKET, touch),
}
