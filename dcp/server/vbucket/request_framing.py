"""Decodes the framing extras of a KV request, and rejects those that dcplake does not support.

    BARRIER                              ignored: responses come in order anyway
    DURABILITY                           SET, ADD, REPLACE, DELETE and TOUCH only
    STREAM_ID                            decoded by the DCP commands
    PRESERVE_TTL                         NOT_SUPPORTED
    IMPERSONATED_USER, EXTRA_PRIVILEGE,
    TOKEN_AUTH                           EACCESS: no client acts for another user
    unknown ids                          UNKNOWN_FRAME_INFO

Source: kv_engine ``daemon/mcbp_validators.cc`` (parseFrameExtras).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from dcp.errors import FrameError
from dcp.server.model.refused_error import RefusedError
from dcp.types import U16_MAX
from dcp.wire.frame_info import FrameInfo, RequestInfo, decode_frame_infos
from dcp.wire.vocabulary import Opcode, Status

DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""Time limit of a sync write that names none (kv_engine ``durability_monitor_impl.h``)."""
_DURABLE: Final = frozenset({Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.TOUCH})
_REFUSED: Final = {
    RequestInfo.PRESERVE_TTL: Status.NOT_SUPPORTED,
    RequestInfo.IMPERSONATED_USER: Status.EACCESS,
    RequestInfo.EXTRA_PRIVILEGE: Status.EACCESS,
    RequestInfo.TOKEN_AUTH: Status.EACCESS,
}


class DurabilityLevel(IntEnum):
    """A majority of nodes must have the write in memory or on disk; numbers are the wire's."""

    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_ACTIVE = 2
    PERSIST_TO_MAJORITY = 3


@dataclass(frozen=True, slots=True)
class DurabilityRequirement:
    level: DurabilityLevel
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


def requirement_of(opcode: int, framing_extras: bytes) -> DurabilityRequirement | None:
    """Return the durability that a request asks for, or None.

    Raises RefusedError if any framing extra is malformed or rejected.
    """
    try:
        infos = decode_frame_infos(framing_extras)
    except FrameError as error:
        raise RefusedError(Status.EINVAL, str(error)) from error
    found = None
    for info in infos:
        if info.id == RequestInfo.DURABILITY:
            found = _requirement(opcode, info)
        else:
            _require_known(info)
    return found


def _require_known(info: FrameInfo) -> None:
    known = (RequestInfo.BARRIER, RequestInfo.STREAM_ID)
    if info.id in known:
        return
    names = {int(each): each for each in RequestInfo}
    name = names.get(info.id)
    status = _REFUSED[name] if name is not None else Status.UNKNOWN_FRAME_INFO
    shown = "unknown" if name is None else name.name
    raise RefusedError(status, f"frame info {info.id} ({shown}) is not supported")


def _requirement(opcode: int, info: FrameInfo) -> DurabilityRequirement:
    if len(info.data) not in (1, 3):
        raise RefusedError(
            Status.EINVAL, f"durability: found {len(info.data)} bytes, expected 1 or 3"
        )
    level = info.data[0]
    if level > max(DurabilityLevel):
        raise RefusedError(
            Status.DURABILITY_INVALID_LEVEL, f"durability level: found {level}, expected 1 to 3"
        )
    timeout_seconds = DEFAULT_TIMEOUT_SECONDS
    if len(info.data) == 3:
        milliseconds = int.from_bytes(info.data[1:], "big")
        # kv_engine reserves 0 and 0xffff.
        if not 0 < milliseconds < U16_MAX:
            raise RefusedError(
                Status.DURABILITY_INVALID_LEVEL,
                f"durability timeout: found {milliseconds} ms, expected 1 to {U16_MAX - 1}",
            )
        timeout_seconds = milliseconds / 1000
    # Level 0 ("none") is valid only without the framing extra.
    if not level or opcode not in _DURABLE:
        raise RefusedError(
            Status.EINVAL, f"command {opcode:#04x} does not support durability level {level}"
        )
    return DurabilityRequirement(DurabilityLevel(level), timeout_seconds)
