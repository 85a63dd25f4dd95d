"""Translates a recorded client's requests into the terms of our machines: set-up steps and streams.

A recorded client may send what ours never would. Then the nearest that ours can say is returned, or
``ValueError`` or ``ConfigError`` says that there is nothing like it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from dcp.errors import FrameError
from dcp.protocol import bootstrap as b
from dcp.protocol.credentials import ALL_MECHANISMS, PLAIN, Credentials, Secret
from dcp.protocol.position import Position
from dcp.protocol.sasl import SaslExchange
from dcp.protocol.stream import Stream
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode, Status

_SCRAM_FIRST = re.compile(r"n,,n=(?P<user>[^,]*),r=(?P<nonce>[^,]+)")


def frames_in(data: bytes, splitter: FrameSplitter) -> list[Frame]:
    """Return the frames that ``data`` completes; none where it is garbage."""
    try:
        block = splitter.feed(data)
        return [block.frame(index) for index in range(len(block))]
    except FrameError:
        return []


def learn_passwords(data: bytes, passwords: dict[str, str]) -> None:
    """Note the passwords that SASL PLAIN in ``data`` tells."""
    for frame in frames_in(data, FrameSplitter()):
        if frame.opcode == Opcode.SASL_AUTH and frame.key == PLAIN.encode():
            parts = frame.value.decode("utf-8", "replace").split("\0")
            if len(parts) == 3:
                passwords.setdefault(parts[1], parts[2])


def is_login(data: bytes) -> bool:
    """Whether the server lets a client in with this frame."""
    frames = frames_in(data, FrameSplitter())
    return any(
        frame.magic is Magic.RESPONSE
        and frame.opcode == Opcode.SASL_AUTH
        and frame.status == Status.SUCCESS
        for frame in frames
    )


# --- set-up: which of our steps a recorded request is, and what it tells of the client ------------


def unknown_client() -> b.Bootstrap:
    """Return the set-up of a client that has said nothing yet."""
    settings = b.BootstrapSettings("unnamed", "unnamed")
    return b.Bootstrap(settings, _credentials("", ""), "nonce", steps=())


def step_of(
    opcode: int, body: m.Body, progress: b.Bootstrap, passwords: Mapping[str, str]
) -> tuple[b.BootstrapStep | None, b.Bootstrap]:
    """Return our step that sends such a request, and the progress with what the request tells.

    The step is None where the request is no part of a set-up.

    Raises:
        ValueError, ConfigError: no step of ours can make the request.
    """
    match opcode, body:
        case Opcode.HELLO, m.Hello():
            return b.HELLO, _knowing(progress, agent=body.agent.decode(), features=body.features)
        case Opcode.SASL_LIST_MECHS, _:
            return b.LIST_MECHANISMS, progress
        case Opcode.SASL_AUTH, m.Sasl():
            return b.AUTHENTICATE, _authenticating(body, progress, passwords)
        case Opcode.SASL_STEP, _:
            if progress.sasl is None:
                raise ValueError("no exchange is under way")
            return b.CONTINUE_AUTHENTICATION, progress
        case Opcode.SELECT_BUCKET, m.SelectBucket():
            return b.SELECT_BUCKET, _knowing(progress, bucket=body.bucket.decode())
        case Opcode.GET_CLUSTER_CONFIG, _:
            return b.GET_CLUSTER_CONFIG, progress
        case Opcode.DCP_OPEN, m.DcpOpen():
            name = body.name.decode()
            return b.DCP_OPEN, _knowing(progress, connection_name=name, open_flags=body.flags)
        case Opcode.DCP_CONTROL, m.DcpControl():
            return b.control_step(body.name.decode(), body.value.decode()), progress
    return None, progress


def _knowing(progress: b.Bootstrap, **settings: object) -> b.Bootstrap:
    """Take over settings of the recorded client."""
    changed = replace(progress.settings, **settings)  # type: ignore[arg-type]
    return replace(progress, settings=changed)


def _authenticating(
    body: m.Sasl, progress: b.Bootstrap, passwords: Mapping[str, str]
) -> b.Bootstrap:
    mechanism, text = body.mechanism.decode(), body.payload.decode()
    first = _SCRAM_FIRST.fullmatch(text)
    if mechanism == PLAIN:
        _, user, password = text.split("\0")
        nonce = "nonce"
    elif first is not None and mechanism in ALL_MECHANISMS:
        user, nonce = first["user"], first["nonce"]
        password = passwords.get(user, "unknown")
    else:
        raise ValueError(f"mechanism {mechanism} is none of ours")
    credentials = _credentials(user, password)
    exchange = SaslExchange.start(mechanism, credentials, nonce)
    return replace(progress, credentials=credentials, nonce=nonce, sasl=exchange)


def _credentials(user: str, password: str) -> Credentials:
    return Credentials(user, Secret(password), ALL_MECHANISMS)


# --- streams --------------------------------------------------------------------------------------


def stream_of(vbucket: int, body: m.StreamRequest) -> Stream:
    """Return the stream that this request opens, or the nearest one that ours could ask for."""
    return Stream.request(
        vbucket,
        _position(body),
        flags=body.flags,
        end_seqno=body.end,
        stream_id=_stream_id_in(body.value),
    )


def _position(body: m.StreamRequest) -> Position:
    """The position that makes this request; the nearest one where ours could not make it."""
    if body.start == 0:
        return Position.beginning()
    if body.snap_start == body.snap_end == body.start:
        return Position.complete_at(body.vb_uuid or 1, body.start)
    try:
        held = body.snap_start  # a request claims that all up to its snapshot's start is held
        return Position(body.vb_uuid, body.start, body.snap_start, body.snap_end, held)
    except ValueError:
        return Position.complete_at(body.vb_uuid or 1, body.start)


def is_stream_request_of_a_client(body: m.StreamRequest) -> bool:
    """Whether some client may ask so: bounds in order, and a filter that is a JSON object.

    Ours names no uuid at seqno 0, and no snapshot of which it holds nothing; servers take both.
    """
    in_order = body.snap_start <= body.start <= min(body.snap_end, body.end)
    from_nothing = body.start == 0 and body.snap_end > 0
    try:
        has_filter = isinstance(json.loads(body.value or b"{}"), dict)
    except ValueError:
        return False
    return in_order and not from_nothing and has_filter and not body.reserved


def _stream_id_in(filter_json: bytes) -> int | None:
    try:
        value = json.loads(filter_json) if filter_json else {}
    except ValueError:
        return None
    found = value.get("sid") if isinstance(value, dict) else None
    return found if isinstance(found, int) else None
