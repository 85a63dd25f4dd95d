"""Writes documents over the wire (SET, ADD, REPLACE, DELETE, TOUCH), durably if requested.

GET is here, too: in a bucket that clients write to, a read expires the document that is due.
"""

from collections.abc import Callable
from typing import Final, cast

from dcp.producer.bucket import bucket_of
from dcp.producer.writes.document_writer import (
    CheckedValue,
    DocumentWriter,
    checked,
    checked_in_steps,
)
from dcp.server.commands.document_commands import datatypes_of, on_document, reply_document
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.model.versions import Version
from dcp.server.vbucket.request_framing import DurabilityRequirement
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Opcode, Status

_SHORT_VALUE_BYTES: Final = 16 * 1024
_CAS_ALONE: Final = m.MutationAnswer()

_Command = Callable[[DocumentWriter, bytes, int, int], Version]
"""Changes the document of a key in a collection, and returns the new version.

The last argument is the durability level; other than 0, the version is a prepare.
"""


def get(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    bucket = bucket_of(session)
    now = bucket.now()

    def answer(vbucket: Vbucket, key: bytes, collection: int) -> None:
        found = bucket.read_from(
            vbucket, lambda documents: documents.get(key, now, collection=collection)
        )
        reply_document(session, frame, found)

    on_document(session, frame, answer)


def store(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """SET, ADD and REPLACE."""
    request = cast("m.Store", body)
    if frame.datatype & ~datatypes_of(session.login.features):
        session.refuse(frame, Status.EINVAL, "Request contains datatypes that were not negotiated")
    elif len(request.value) <= _SHORT_VALUE_BYTES:
        _store(session, frame, request, checked(request.value, frame.datatype))
    else:
        session.examine(
            frame,
            # Checking a long value takes time, so it goes in steps between which other connections
            # are served.
            checked_in_steps(request.value, frame.datatype),
            lambda value: _store(session, frame, request, value),
        )


def _store(session: Session, frame: Frame, request: m.Store, value: CheckedValue) -> None:
    now = session.bucket.now()

    def command(documents: DocumentWriter, key: bytes, collection: int, level: int) -> Version:
        return documents.store(
            key,
            value,
            now,
            opcode=frame.opcode,
            flags=request.flags,
            expiry=request.expiry,
            cas=frame.cas,
            collection=collection,
            level=level,
        )

    _change(session, frame, command, _mutation_answer)


def delete(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    now = session.bucket.now()

    def command(documents: DocumentWriter, key: bytes, collection: int, level: int) -> Version:
        return documents.delete(key, now, cas=frame.cas, collection=collection, level=level)

    _change(session, frame, command, _mutation_answer)


def touch(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    now = session.bucket.now()
    expiry = cast("m.Touch", body).expiry

    def command(documents: DocumentWriter, key: bytes, collection: int, level: int) -> Version:
        return documents.touch(key, expiry, now, collection=collection, level=level)

    _change(session, frame, command, lambda *_: m.Empty())


def _change(
    session: Session,
    frame: Frame,
    command: _Command,
    answer_of: Callable[[Session, Vbucket, Version], m.Body],
) -> None:
    def change(vbucket: Vbucket, key: bytes, collection: int) -> None:
        def reply(version: Version) -> None:
            session.reply(frame, answer_of(session, vbucket, version), cas=version.cas)

        requirement = session.requirement
        level = 0 if requirement is None else requirement.level

        def act(documents: DocumentWriter) -> Version:
            return command(documents, key, collection, level)

        if requirement is None:
            reply(bucket_of(session).write_to(vbucket, act))
        else:
            _write_durably(session, frame, vbucket, requirement, act, reply)

    on_document(session, frame, change)


def _write_durably(
    session: Session,
    frame: Frame,
    vbucket: Vbucket,
    requirement: DurabilityRequirement,
    command: Callable[[DocumentWriter], Version],
    reply: Callable[[Version], None],
) -> None:
    """Run ``command``, which prepares a write; ``reply`` answers after its commit.

    Later requests of the session wait for it.

    Raises:
        RefusedError: nothing was prepared: too few nodes, or the command refuses.
    """
    bucket = bucket_of(session)
    bucket.sync_writes.require_possible(vbucket.id)
    prepare = bucket.write_to(vbucket, command)
    go_on = session.wait()

    def answer(status: Status) -> None:
        if status is Status.SUCCESS:
            go_on(lambda: reply(prepare))
        else:
            go_on(lambda: session.refuse(frame, status))

    deadline = bucket.now() + requirement.timeout_seconds
    bucket.sync_writes.track(prepare, deadline, answer)


def _mutation_answer(session: Session, vbucket: Vbucket, version: Version) -> m.Body:
    if HelloFeature.MUTATION_SEQNO in session.login.features:
        return m.MutationAnswer(vbucket.failover_log.current_uuid, version.seqno)
    return _CAS_ALONE


WRITE_COMMANDS: Final[dict[int, CommandHandler]] = {
    Opcode.GET: CommandHandler(Access.BUCKET, get),
    Opcode.SET: CommandHandler(Access.BUCKET, store),
    Opcode.ADD: CommandHandler(Access.BUCKET, store),
    Opcode.REPLACE: CommandHandler(Access.BUCKET, store),
    Opcode.DELETE: CommandHandler(Access.BUCKET, delete),
    Opcode.TOUCH: CommandHandler(Access.BUCKET, touch),
}
