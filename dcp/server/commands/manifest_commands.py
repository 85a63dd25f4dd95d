"""Commands about collections: the manifest, and the ids of collections and scopes."""

from collections.abc import Callable
from typing import Final, cast

from dcp.server.commands.refusals import answer_refusal
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.model.manifest import Manifest
from dcp.server.model.refused_error import RefusedError
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, Opcode

_JSON: Final = int(Datatype.JSON)


def manifest(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    session.reply(frame, m.Text(session.bucket.manifest.as_json()), datatype=_JSON)


def collection_id(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    _reply_id(session, frame, body, lambda known, path: known.at(path).id)


def scope_id(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer the id of a scope by its name, or by a path that begins with it."""
    _reply_id(session, frame, body, lambda known, path: known.scope(path.partition(".")[0]).id)


def _reply_id(
    session: Session, frame: Frame, body: m.Body, id_of: Callable[[Manifest, str], int]
) -> None:
    path = cast("m.GetId", body).path.decode("utf-8", "replace")
    manifest = session.bucket.manifest
    try:
        found = id_of(manifest, path)
    except RefusedError as refused:
        answer_refusal(session, frame, refused)
    else:
        session.reply(frame, m.IdAnswer(manifest.uid, found))


MANIFEST_COMMANDS: Final[dict[int, CommandHandler]] = {
    Opcode.GET_COLLECTIONS_MANIFEST: CommandHandler(Access.BUCKET, manifest),
    Opcode.GET_COLLECTION_ID: CommandHandler(Access.BUCKET, collection_id),
    Opcode.GET_SCOPE_ID: CommandHandler(Access.BUCKET, scope_id),
}
