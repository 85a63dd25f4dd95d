"""One client connection, without I/O: frames and time go in, bytes come out.

feed(frame, now)      a request or an answer of the client
output(most, now)     what to write next: answers first, then NOOPs, then stream messages
next_deadline(now)    when to call output() even though nothing happened
"""

import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from dcp.errors import FrameError
from dcp.server.bucket.assembly import Bucket
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.commands.header_checks import header_fault
from dcp.server.commands.login import Login
from dcp.server.commands.map_notifier import MapNotifier
from dcp.server.commands.outbox import Outbox
from dcp.server.model.refused_error import RefusedError
from dcp.server.streams.dcp_options import DcpClient
from dcp.server.vbucket.request_framing import DurabilityRequirement, requirement_of
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import (
    MAX_FRAME_BYTES,
    MAX_UNAUTHENTICATED_FRAME_BYTES,
    Datatype,
    HelloFeature,
    Magic,
    Opcode,
    Status,
)

P = ParamSpec("P")
T = TypeVar("T")
_LOGGER = logging.getLogger(__name__)
_DISK_FAILED: Final = "The disk failed; the server's log says how"
"""Clients learn no paths of the server."""
_TAKEOVER_OPCODES: Final = frozenset({Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE})
"""Messages that the client of a takeover stream must answer."""


class Access:
    """The conditions that a command can demand."""

    ANYBODY: Final = "anybody"
    USER: Final = "user"
    BUCKET: Final = "bucket"
    DCP: Final = "dcp"


Handler = Callable[["Session", Frame, m.Body, float], None]
"""Answers one command; the last argument is the time."""


@dataclass(frozen=True, slots=True)
class CommandHandler:
    """A command's handler, and the condition for sending it."""

    access: str
    handler: Handler
    before_dcp_open: bool = False


class Session:
    """A client's connection to ``node``.

    A malformed body gets EINVAL. A violation of the protocol closes this connection, and no other.
    """

    def __init__(
        self, bucket: Bucket, node: int, commands: Mapping[int, CommandHandler], now: float
    ) -> None:
        self._commands = commands
        self.bucket = bucket
        self.node = node
        self.login = Login(bucket.users)
        self.dcp: DcpConnection | None = None
        self.is_closing = False
        self._wake: Callable[[], None] | None = None
        self.is_waiting = False
        """True until the last request is answered; ``feed`` must not be called meanwhile."""
        self.requirement: DurabilityRequirement | None = None
        """Durability that the current request asks for."""
        self.work: Iterator[None] | None = None
        """Steps that the current request still needs; the socket's side does them, one by one."""
        self._after_work: Callable[[], None] | None = None
        self._outbox = Outbox()
        self._opened_at = now
        self.map_notifier = MapNotifier(bucket.map)
        bucket.counters.connections_opened += 1

    def attach(self, wake: Callable[[], None]) -> None:
        """Attach the socket's side, which from then on also does the steps of ``work``.

        ``wake`` tells it that the session has bytes to write, or closes; the session calls
        ``wake`` in the loop's thread.
        """
        self._wake = wake

    def detach(self) -> None:
        self._wake = None

    # --- input

    @property
    def outbox_bytes(self) -> int:
        """Bytes of answers that wait for the client, without streams."""
        return self._outbox.waiting_bytes

    @property
    def has_long_answer(self) -> bool:
        """True if an answer of many frames waits; its owner must give others their turn."""
        return self._outbox.is_long

    @property
    def max_frame_bytes(self) -> int:
        return MAX_FRAME_BYTES if self.login.user else MAX_UNAUTHENTICATED_FRAME_BYTES

    def feed(self, frame: Frame, now: float) -> None:
        if self.is_closing:
            return
        if self.dcp is not None:
            self.dcp.noop.heard(now)
        if frame.magic is Magic.REQUEST:
            self._feed_request(frame, now)
        elif frame.magic.is_response:
            self._feed_answer(frame)
        elif frame.magic is Magic.SERVER_REQUEST:
            self.abort()  # only servers send server requests
        elif frame.magic is Magic.ALT_REQUEST and not self._takes_framing_extras:
            self.abort()  # framing extras were not negotiated
        else:
            self._feed_request(frame, now)

    @property
    def _takes_framing_extras(self) -> bool:
        has_stream_ids = self.dcp is not None and self.dcp.options.stream_ids
        return has_stream_ids or HelloFeature.ALT_REQUEST in self.login.features

    def wait(self) -> Callable[[Callable[[], None]], None]:
        """Suspend requests; return a function that answers the current one, then resumes others."""
        self.is_waiting = True

        def go_on(answer: Callable[[], None]) -> None:
            self.is_waiting = False
            if not self.is_closing:
                answer()
            if self._wake is not None:
                self._wake()

        return go_on

    def examine(
        self, frame: Frame, steps: Generator[None, None, T], then: Callable[[T], None]
    ) -> None:
        """Run ``steps`` and call ``then`` with their result; requests wait until then.

        The socket's side runs the steps between other connections' turns, without the bucket's
        lock. Without a socket they run in this call.
        """

        def work() -> Iterator[None]:
            found = yield from steps
            self._after_work = lambda: self._guarded(frame, then, found)

        self.work, self.is_waiting = work(), True
        if self._wake is None:
            for _ in self.work:
                pass
            self.end_work()

    def end_work(self) -> None:
        """Resume requests after ``work`` is done; under the bucket's lock."""
        then, self._after_work = self._after_work, None
        self.work, self.is_waiting = None, False
        if then is not None and not self.is_closing:
            then()

    def _feed_answer(self, frame: Frame) -> None:
        if self.dcp is None:
            return
        if frame.opcode in _TAKEOVER_OPCODES and frame.status == Status.SUCCESS:
            self.dcp.takeover_answered(frame.opcode, frame.opaque)
        if frame.opcode != Opcode.DCP_NOOP:
            return
        if self.dcp.noop.answered(frame.opaque):
            self.bucket.counters.noops_answered += 1
        else:
            self.abort()

    def _feed_request(self, frame: Frame, now: float) -> None:
        command = self._commands.get(frame.opcode)
        # Only producers send NOOPs, as requests.
        if frame.opcode == Opcode.DCP_NOOP:
            self.abort()
        elif command is None:
            self.refuse(frame, Status.UNKNOWN_COMMAND)
        elif not self._passes(command, frame):
            return
        elif fault := header_fault(frame, self.login.features, is_dcp=self.dcp is not None):
            self.refuse(frame, Status.EINVAL, fault)
        else:
            try:
                extras = frame.framing_extras
                self.requirement = requirement_of(frame.opcode, extras) if extras else None
                body = decode(frame)
            except RefusedError as error:
                self.refuse(frame, error.status, str(error))
            except (FrameError, ValueError) as error:
                self.refuse(frame, Status.EINVAL, str(error))
            else:
                self._carry_out(command, frame, body, now)

    def _carry_out(self, command: CommandHandler, frame: Frame, body: m.Body, now: float) -> None:
        self._guarded(frame, command.handler, self, frame, body, now)

    def _guarded(
        self, frame: Frame, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Run a command; if the disk fails, answer ETMPFAIL.

        Source: kv_engine ``engines/ep/src/vbucket.cc``, completeBGFetchForSingleItem.
        """
        try:
            act(*args, **kwargs)
        except OSError as error:
            name = Opcode(frame.opcode).name
            _LOGGER.warning("vbucket %d: %s is answered ETMPFAIL: %s", frame.vbucket, name, error)
            self.refuse(frame, Status.ETMPFAIL, _DISK_FAILED)

    def _passes(self, command: CommandHandler, frame: Frame) -> bool:
        """Check the command's access; if it fails, answer the frame."""
        # Servers demand DCP_OPEN before they demand a user, and answer EINVAL even without XERROR
        # (recorded from a 7.0 server, ``tests/data/captures/08-errors.jsonl``).
        if command.access == Access.DCP and self.dcp is None:
            self.refuse(frame, Status.EINVAL, "The command can only be sent on a DCP connection")
        elif (
            command.access == Access.DCP
            and self.dcp is not None
            and not self.dcp.client.is_producer
        ):
            # The client opened a consumer, and would send streams (kv_engine dcp/connhandler.cc:
            # disconnects).
            self.abort()
        elif command.access != Access.ANYBODY and self.login.user is None:
            self.refuse_access(frame, Status.EACCESS, "Not authenticated")
        elif command.access in (Access.BUCKET, Access.DCP) and not self.login.has_bucket:
            self.refuse_access(frame, Status.NO_BUCKET)
        elif command.before_dcp_open and self.dcp is not None:
            self.refuse(frame, Status.NOT_SUPPORTED)
        else:
            return True
        return False

    # --- answers

    def reply(
        self, frame: Frame, body: m.Body, *, status: int = 0, cas: int = 0, datatype: int = 0
    ) -> None:
        answer = encode(
            body,
            frame.opcode,
            magic=Magic.RESPONSE,
            status=status,
            opaque=frame.opaque,
            cas=cas,
            datatype=datatype,
        )
        self._put(answer)

    def reply_with_many(self, frame: Frame, bodies: Iterable[m.Body]) -> None:
        """Answer with one frame for each body, made as the client reads."""
        self._outbox.put_long(
            encode(body, frame.opcode, magic=Magic.RESPONSE, opaque=frame.opaque).to_bytes()
            for body in bodies
        )

    def refuse(self, frame: Frame, status: Status, context: str = "") -> None:
        """Answer ``frame`` with an error; ``context`` goes along as JSON."""
        tree = {"error": {"context": context}}
        value = json.dumps(tree, separators=(",", ":")).encode() if context else b""
        # The datatype says JSON to clients that negotiated JSON. Other clients see it only if they
        # lack the right to stream (as observed on a 7.0 server).
        lacks_right = (frame.opcode, status) == (Opcode.DCP_OPEN, Status.EACCESS)
        tells = HelloFeature.JSON in self.login.features or lacks_right
        datatype = int(Datatype.JSON) if value and tells else 0
        self.reply(frame, m.Refusal(value), status=status, datatype=datatype)

    def refuse_access(self, frame: Frame, status: Status, context: str = "") -> None:
        """Refuse with a status that needs XERROR; without XERROR, close the connection."""
        if HelloFeature.XERROR in self.login.features:
            self.refuse(frame, status, context)
        else:
            self.abort()

    def refuse_vbucket(self, frame: Frame) -> None:
        """Answer NOT_MY_VBUCKET with the map, unless the client has it and wants it only once."""
        config = self.map_notifier.for_refusal(self.node, self.login.features)
        self.reply(
            frame,
            m.Refusal(config),
            status=Status.NOT_MY_VBUCKET,
            datatype=int(Datatype.JSON) if config else 0,
        )

    def abort(self) -> None:
        """Close because of a client's violation, after the answers given so far."""
        if not self.is_closing:
            self.bucket.counters.connections_closed_for_errors += 1
        self.close()

    def close(self) -> None:
        self.is_closing = True
        if self._wake is not None:
            self._wake()

    def open_dcp(self, client: DcpClient, now: float) -> None:
        self.dcp = self.bucket.dcp_connections.open(client, self.close)
        self.dcp.noop.heard(now)

    def let_go_of_some(self) -> bool:
        """Close, and end some streams; return True if streams are left."""
        self.close()
        return self.dcp is not None and self.dcp.drop_some_streams()

    def forget(self) -> None:
        self.is_closing = True
        self.bucket.persistence_waits.forget(self)
        if self.dcp is not None:
            self.bucket.dcp_connections.close(self.dcp)

    # --- output

    def output(
        self,
        most_bytes: int,
        now: float,
        most_made: int | None = None,
        is_turn_over: Callable[[], bool] = lambda: False,
    ) -> list[bytes | bytearray]:
        """Return the next bytes to write, in order; empty if there are none now.

        ``most_made`` limits the frames made of long answers. Streams are asked until
        ``is_turn_over`` returns True.
        """
        if self.dcp is not None and not self.is_closing:
            self._keep_alive(self.dcp, now)
        # A long answer takes many calls. A map appended in each of them would pile up.
        if self.login.has_bucket and not self._outbox.is_long:
            news = self.map_notifier.notification(self.bucket.name, self.node, self.login.features)
            if news is not None:
                self._put(news)
        frames: list[bytes | bytearray] = [*self._outbox.take(most_bytes, most_made)]
        if self.dcp is not None and not self.is_closing and self._outbox.is_empty:
            frames += self.dcp.next_frames(most_bytes - sum(map(len, frames)), is_turn_over)
        return frames

    def _keep_alive(self, dcp: DcpConnection, now: float) -> None:
        opaque = dcp.noop.due(now)
        if opaque is not None:
            self.bucket.counters.noops_sent += 1
            self._put(encode(m.Empty(), Opcode.DCP_NOOP, opaque=opaque))
        self.close_if_overdue(now)

    def close_if_overdue(self, now: float) -> None:
        """Close a client that broke a time limit; call it even if nothing can be written.

        Limits: time to log in; silence with NOOPs on; nothing acknowledged, for configured names.
        Source: kv_engine ``dcp/producer.cc``, ``daemon/front_end_thread.cc``.
        """
        if self.dcp is not None:
            is_overdue = self.dcp.noop.is_dead(now)
            if not self.is_closing and self.dcp.is_stuck(now):
                _LOGGER.warning(
                    "%s: closed because it acknowledged nothing of its full window for %g seconds",
                    self.dcp.client.display_name,
                    self.dcp.stuck_timeout_seconds,
                )
                is_overdue = True
        else:
            limit_seconds = self.bucket.settings.authentication_seconds
            is_overdue = self.login.user is None and 0 < limit_seconds < now - self._opened_at
        if is_overdue:
            self.abort()

    def next_deadline(self, now: float) -> float | None:
        """Return the time at which ``output`` has work even if nothing happens."""
        return self.dcp.noop.next_deadline(now) if self.dcp is not None else None

    def vbuckets_changed(self, vbuckets: set[int]) -> bool:
        return self.dcp is not None and self.dcp.vbuckets_changed(vbuckets)

    def _put(self, frame: Frame) -> None:
        self._outbox.put(frame.to_bytes())
        counters, waiting_bytes = self.bucket.counters, self._outbox.waiting_bytes
        counters.peak_outbox_bytes = max(counters.peak_outbox_bytes, waiting_bytes)
