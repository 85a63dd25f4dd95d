"""A tiny client of raw frames: what the producer's tests speak to it with."""

import socket
import ssl
from collections.abc import Callable
from typing import Self

from scramp import ScramClient

from dcp.server.bucket.auth import REPLICATION_USER
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, Status

PATIENCE_SECONDS = 90.0
"""How long an answer may take, on a machine that is busy with other things as well."""
PLAIN_FEATURES = (HelloFeature.XATTR, HelloFeature.XERROR, HelloFeature.JSON)
FEATURES = (*PLAIN_FEATURES, HelloFeature.COLLECTIONS)
STREAM_OPCODES = frozenset(
    (
        *range(Opcode.DCP_STREAM_END, Opcode.DCP_EXPIRATION + 1),
        Opcode.DCP_SET_VBUCKET_STATE,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_OSO_SNAPSHOT,
    )
)


class RawClient:
    """A blocking socket, encrypted where ``tls`` is given; waits are bounded by ``timeout``."""

    def __init__(
        self, seed: str, timeout: float = PATIENCE_SECONDS, tls: ssl.SSLContext | None = None
    ) -> None:
        host, port = seed.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._splitter = FrameSplitter()
        self._received: list[Frame] = []
        self._opaque = 0x100

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(frame.to_bytes() for frame in frames))

    def next_frame(self) -> Frame:
        """The next frame of any kind; EOFError when the server closed."""
        while not self._received:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError as error:
                raise EOFError("reset by the server") from error
            if not data:
                raise EOFError("closed by the server")
            block = self._splitter.feed(data)
            self._received += [block.frame(index) for index in range(len(block))]
        return self._received.pop(0)

    def is_closed(self) -> bool:
        """Read until the server closes; whether it did before the timeout."""
        try:
            while True:
                self.next_frame()
        except EOFError:
            return True
        except TimeoutError:
            return False

    def frames_to_the_end(self) -> list[Frame]:
        """Read until the server closes: in good order, and behind a whole frame."""
        frames, self._received = self._received, []
        while data := self.socket.recv(1 << 20):
            block = self._splitter.feed(data)
            frames += [block.frame(index) for index in range(len(block))]
        assert self._splitter.pending_bytes == 0
        return frames

    def answer(self) -> Frame:
        """The next answer; stream messages before it are kept."""
        kept: list[Frame] = []
        try:
            while True:
                frame = self.next_frame()
                if frame.magic is Magic.RESPONSE:
                    return frame
                kept.append(frame)
        finally:
            self._received = kept + self._received

    def call(
        self,
        body: m.Body,
        opcode: int,
        *,
        vbucket: int = 0,
        cas: int = 0,
        datatype: int = 0,
        framing_extras: bytes = b"",
    ) -> Frame:
        self._opaque += 1
        request = encode(
            body,
            opcode,
            magic=Magic.ALT_REQUEST if framing_extras else Magic.REQUEST,
            vbucket=vbucket,
            cas=cas,
            datatype=datatype,
            opaque=self._opaque,
            framing_extras=framing_extras,
        )
        self.send(request)
        answer = self.answer()
        assert (answer.opcode, answer.opaque) == (opcode, self._opaque)
        return answer

    def ok(self, body: m.Body, opcode: int, *, vbucket: int = 0, datatype: int = 0) -> m.Body:
        answer = self.call(body, opcode, vbucket=vbucket, datatype=datatype)
        assert answer.status == Status.SUCCESS, hex(answer.status)
        return decode(answer)

    def statistics(self, group: str, value: bytes = b"") -> dict[str, str]:
        """All statistics of a group, each of which comes once."""
        found: dict[str, str] = {}
        body = self.ok(m.Stat(group.encode(), value), Opcode.STAT)
        while isinstance(body, m.StatAnswer) and body.key:
            assert body.key.decode() not in found
            found[body.key.decode()] = body.value.decode()
            body = decode(self.answer())
        return found

    # --- bootstrap

    def log_in(
        self,
        features: tuple[HelloFeature, ...] = FEATURES,
        user: str = "Administrator",
        password: str = "password",  # noqa: S107  the embedded server's default
        bucket: bytes = b"default",
    ) -> Self:
        self.ok(m.Hello(b"raw", tuple(int(f) for f in features)), Opcode.HELLO)
        if user == REPLICATION_USER:  # who has no other mechanism
            answer = self.scram(b"SCRAM-SHA512", "SCRAM-SHA-512", user, password)
            assert answer.status == Status.SUCCESS
        else:
            payload = b"\0" + user.encode() + b"\0" + password.encode()
            self.ok(m.Sasl(b"PLAIN", payload), Opcode.SASL_AUTH)
        self.ok(m.SelectBucket(bucket), Opcode.SELECT_BUCKET)
        return self

    def scram(self, mechanism: bytes, scramp_name: str, user: str, password: str) -> Frame:
        client = ScramClient([scramp_name], user, password)
        first = m.Sasl(mechanism, client.get_client_first().encode())
        answer = self.call(first, Opcode.SASL_AUTH)
        assert answer.status == Status.AUTH_CONTINUE
        client.set_server_first(answer.value.decode())
        answer = self.call(m.Sasl(mechanism, client.get_client_final().encode()), Opcode.SASL_STEP)
        if answer.status == Status.SUCCESS:
            client.set_server_final(answer.value.decode())
        return answer

    def open_dcp(
        self,
        name: bytes = b"raw",
        flags: int = 0x01,
        window: int = 0,
        noop: bool = True,
        **controls: str,
    ) -> Self:
        self.ok(m.DcpOpen(name, flags), Opcode.DCP_OPEN)
        if noop:
            controls = {"enable_noop": "true", **controls}
        if window:
            controls["connection_buffer_size"] = str(window)
        for key, value in controls.items():
            self.ok(m.DcpControl(key.encode(), value.encode()), Opcode.DCP_CONTROL)
        return self

    # --- streams

    def request_stream(
        self,
        vbucket: int,
        start: int = 0,
        *,
        end: int = END_OF_TIME,
        vb_uuid: int = 0,
        snapshot: tuple[int, int] | None = None,
        flags: int = 0,
        value: bytes = b"",
    ) -> Frame:
        snap_start, snap_end = snapshot or (start, start)
        body = m.StreamRequest(flags, start, end, vb_uuid, snap_start, snap_end, value)
        return self.call(body, Opcode.DCP_STREAM_REQ, vbucket=vbucket)

    def stream_frame(self) -> Frame:
        """The next stream message; NOOPs are answered on the way."""
        while True:
            frame = self.next_frame()
            if frame.opcode == Opcode.DCP_NOOP:
                self.send(
                    encode(m.Empty(), frame.opcode, magic=Magic.RESPONSE, opaque=frame.opaque)
                )
            elif frame.opcode in STREAM_OPCODES and not frame.magic.is_response:
                return frame

    def message(self) -> m.Body:
        return decode(self.stream_frame())

    def messages_until(self, is_last: Callable[[m.Body], bool]) -> list[m.Body]:
        found = [self.message()]
        while not is_last(found[-1]):
            found.append(self.message())
        return found

    def messages_to(self, seqno: int) -> list[m.Body]:
        """All messages up to the item with this seqno."""
        return self.messages_until(lambda body: getattr(body, "by_seqno", None) == seqno)

    def is_quiet(self, seconds: float = 0.2) -> bool:
        """Whether the server sends nothing more after answering a keep-alive, NOOPs aside."""
        self.ok(m.Empty(), Opcode.NOOP)
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self.stream_frame()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(before)
        return False

    def ack(self, frame_bytes: int) -> None:
        self.send(encode(m.BufferAck(frame_bytes), Opcode.DCP_BUFFER_ACK))
