"""The table of all commands that the producer answers."""

from typing import Final

from dcp.producer.admin_commands import Administrator, admin_commands
from dcp.producer.bucket import bucket_of
from dcp.producer.write_commands import WRITE_COMMANDS
from dcp.server.commands.command_table import SHARED_COMMANDS
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status


def _stream_request(session: Session, frame: Frame, body: m.Body, now: float) -> None:
    """Refuse a client's stream if a test ordered it; streams between nodes get no refusals."""
    is_of_client = session.dcp is not None and not session.dcp.is_internal
    status = bucket_of(session).faults.refusal(frame.vbucket) if is_of_client else None
    if status is None:
        SHARED_COMMANDS[frame.opcode].handler(session, frame, body, now)
        return
    session.bucket.counters.streams_refused[frame.vbucket] += 1
    if status is Status.NOT_MY_VBUCKET:
        session.refuse_vbucket(frame)
    elif status is Status.ROLLBACK:
        session.reply(frame, m.RollbackAnswer(0), status=status)
    else:
        session.refuse(frame, status)


COMMANDS: Final[dict[int, CommandHandler]] = {
    **SHARED_COMMANDS,
    **WRITE_COMMANDS,
    Opcode.DCP_STREAM_REQ: CommandHandler(Access.DCP, _stream_request),
}
"""All commands except administrative ones (`producer_commands`)."""


def producer_commands(administrator: Administrator) -> dict[int, CommandHandler]:
    return COMMANDS | admin_commands(administrator)
