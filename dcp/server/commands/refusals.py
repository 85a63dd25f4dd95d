"""Answers to requests that a command refuses."""

import json

from dcp.server.commands.session import Session
from dcp.server.model.refused_error import RefusedError
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Status


def answer_refusal(session: Session, frame: Frame, refused: RefusedError) -> None:
    """Answer a refused request; only EINVAL and EACCESS come with their reason."""
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
    session.reply(frame, m.Refusal(value), status=shown_status, datatype=int(Datatype.JSON))
