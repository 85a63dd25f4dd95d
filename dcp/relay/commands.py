"""The commands that a relay's node answers differently: it takes no writes.

SET ADD REPLACE DELETE TOUCH     EACCESS, with the reason
IOCTL_SET IOCTL_GET              the same
DCP_STREAM_REQ                   ETMPFAIL if the relay does not have the client's position yet;
                                 the client counts in its group until it gets or closes the stream
failover logs, OBSERVE_SEQNO     ETMPFAIL until the relay knows the failover log
DCP_OPEN                         EINVAL for a name with a malformed ``#gtag=``
DCP_CONTROL receiver_group_tag   sets the client's group (``receivers.py``)
STAT relay                       the relay's figures, as JSON (``dcp/relay_figures.py``)
"""

import json
from collections.abc import Mapping
from typing import Final, cast

from dcp.relay.bucket import RelayBucket
from dcp.relay.receivers import TAG_CONTROL, named_tag
from dcp.relay.regulator import Regulator
from dcp.server.commands.command_table import SHARED_COMMANDS
from dcp.server.commands.session import Access, CommandHandler, Handler, Session
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode, Status, StreamFlag

READ_ONLY: Final = "A relay takes no writes: send them to the cluster that fills it"
GROUP: Final = b"relay"
_MOST_SHOWN: Final = 40
_WRITES: Final = (Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.TOUCH)
_ORDERS: Final = (Opcode.IOCTL_SET, Opcode.IOCTL_GET)
_QUESTIONS_OF_BRANCHES: Final = (
    Opcode.GET_FAILOVER_LOG,
    Opcode.DCP_GET_FAILOVER_LOG,
    Opcode.OBSERVE_SEQNO,
)


def relay_commands(bucket: RelayBucket, regulator: Regulator) -> Mapping[int, CommandHandler]:
    def stream_request(session: Session, frame: Frame, body: m.Body, now: float) -> None:
        request = cast("m.StreamRequest", body)
        if request.flags & StreamFlag.TAKEOVER:
            session.refuse_access(frame, Status.EACCESS, "A relay hands over no vbucket")
        elif session.dcp is not None and _is_too_early(frame.vbucket, request):
            regulator.stream_deferred(session.dcp, frame.vbucket)
            bucket.counters.streams_refused[frame.vbucket] += 1
            session.refuse(
                frame, Status.ETMPFAIL, "The relay has not received this position yet: ask again"
            )
        else:
            SHARED_COMMANDS[frame.opcode].handler(session, frame, body, now)
            if session.dcp is not None and session.dcp.streams.of({frame.vbucket}):
                regulator.stream_wait_ended(session.dcp, frame.vbucket)

    def close_stream(session: Session, frame: Frame, body: m.Body, now: float) -> None:
        SHARED_COMMANDS[frame.opcode].handler(session, frame, body, now)
        if session.dcp is not None and frame.vbucket < len(bucket.vbuckets):
            regulator.stream_wait_ended(session.dcp, frame.vbucket)

    def _is_too_early(vbucket: int, request: m.StreamRequest) -> bool:
        return vbucket < len(bucket.vbuckets) and bucket.is_too_early(vbucket, request)

    def ask_of_branches(session: Session, frame: Frame, body: m.Body, now: float) -> None:
        vbucket = frame.vbucket
        if vbucket < len(bucket.vbuckets) and not bucket.is_known(vbucket):
            session.refuse(
                frame, Status.ETMPFAIL, "The relay does not know the failover log yet: ask again"
            )
        else:
            SHARED_COMMANDS[frame.opcode].handler(session, frame, body, now)

    def dcp_open(session: Session, frame: Frame, body: m.Body, now: float) -> None:
        try:
            named_tag(cast("m.DcpOpen", body).name)
        except ValueError as error:
            session.refuse(frame, Status.EINVAL, str(error))
        else:
            SHARED_COMMANDS[frame.opcode].handler(session, frame, body, now)

    def control(session: Session, frame: Frame, body: m.Body, now: float) -> None:
        asked = cast("m.DcpControl", body)
        if asked.name != TAG_CONTROL or session.dcp is None:
            SHARED_COMMANDS[frame.opcode].handler(session, frame, body, now)
        elif regulator.set_tag(session.dcp, asked.value):
            session.reply(frame, m.Empty())
        else:
            found = asked.value.decode("utf-8", "backslashreplace")[:_MOST_SHOWN]
            expected = "expected a decimal number of 64 bits, with a sign"
            text = f"receiver_group_tag: found {found!r}, {expected}"
            session.refuse(frame, Status.EINVAL, text)

    def stat(session: Session, frame: Frame, body: m.Body, now: float) -> None:
        if cast("m.Stat", body).group != GROUP:
            SHARED_COMMANDS[frame.opcode].handler(session, frame, body, now)
            return
        figures = json.dumps(bucket.process_figures().to_json()).encode()
        session.reply_with_many(frame, [m.StatAnswer(GROUP, figures), m.StatAnswer()])

    changed: dict[int, Handler] = {
        **dict.fromkeys(_QUESTIONS_OF_BRANCHES, ask_of_branches),
        Opcode.DCP_OPEN: dcp_open,
        Opcode.DCP_STREAM_REQ: stream_request,
        Opcode.DCP_CLOSE_STREAM: close_stream,
        Opcode.DCP_CONTROL: control,
        Opcode.STAT: stat,
    }
    return _REFUSED | {
        opcode: CommandHandler(
            command.access, changed.get(opcode, command.handler), command.before_dcp_open
        )
        for opcode, command in SHARED_COMMANDS.items()
    }


def _refuse_write(session: Session, frame: Frame, _: m.Body, __: float) -> None:
    session.refuse_access(frame, Status.EACCESS, READ_ONLY)


_REFUSED: Final = {
    **dict.fromkeys(_WRITES, CommandHandler(Access.BUCKET, _refuse_write)),
    **dict.fromkeys(_ORDERS, CommandHandler(Access.USER, _refuse_write)),
}
