"""Commands about collections: the manifest, and the ids of collections and scopes."""

import json
from collections.abc import Callable
from typing import Final, cast

from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.server.model.manifest import Manifest
from dcp.server.model.refused_error import RefusedError
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Opcode, Status

_JSON: Final = int(Datatype.JSON)


def manifest(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    session.reply(frame, m.Text(session.bucket.manifest.as_json()), datatype=_JSON)


def collection_id(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    _reply_id(session, frame, body, lambda held, path: held.at(path).id)


def scope_id(session: Session, frame: Frame, body: m.Body, _: float) -> None:
    """Answer the id of a scope by its name, or by a path that begins with it."""
    _reply_id(session, frame, body, lambda held, path: held.scope(path.partition(".")[0]).id)


def _reply_id(
    session: Session, frame: Frame, body: m.Body, id_of: Callable[[Manifest, str], int]
) -> None:
    path = cast("m.GetId", body).path.decode("utf-8", "replace")
    held = session.bucket.manifest
    try:
        found = id_of(held, path)
    except RefusedError as refused:
        answer_refusal(session, frame, refused)
    else:
        session.reply(frame, m.IdAnswer(held.uid, found))


def answer_refusal(session: Session, frame: Frame, refused: RefusedError) -> None:
    """Answer a request that is refused; only EINVAL and EACCESS come with their reason."""
    if refused.status is Status.EACCESS:
        session.refuse_access(frame, refused.status, str(refused))
    elif refused.status is Status.NOT_MY_VBUCKET:
        session.refuse_vbucket(frame)
    elif refused.status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        refuse_unknown_id(session, frame, refused.status)
    else:
        reason = str(refused) if refused.status is Status.EINVAL else ""
        session.refuse(frame, refused.status, reason)


def refuse_unknown_id(session: Session, frame: Frame, status: Status) -> None:
    """Refuse an unknown collection or scope, with the uid of the manifest that lacks it."""
    tree = {
        "error": {"context": "Unknown scope or collection in operation"},
        "manifest_uid": f"{session.bucket.manifest.uid:x}",
    }
    value = json.dumps(tree, separators=(",", ":")).encode()
    # Clients without Collections do not know the status.
    shown_status = status if HelloFeature.COLLECTIONS in session.login.features else Status.EINVAL
    session.reply(frame, m.Refusal(value), status=shown_status, datatype=_JSON)


MANIFEST_COMMANDS: Final[dict[int, CommandHandler]] = {
    Opcode.GET_COLLECTIONS_MANIFEST: CommandHandler(Access.BUCKET, manifest),
    Opcode.GET_COLLECTION_ID: CommandHandler(Access.BUCKET, collection_id),
    Opcode.GET_SCOPE_ID: CommandHandler(Access.BUCKET, scope_id),
}
