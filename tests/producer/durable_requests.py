"""Requests of a client of durable writes: its negotiation and its framing extras."""

from dcp.wire.frame_info import FrameInfo, RequestInfo, encode_frame_infos
from dcp.wire.vocabulary import HelloFeature
from tests.producer.raw_client import PLAIN_FEATURES

FEATURES = (*PLAIN_FEATURES, HelloFeature.ALT_REQUEST, HelloFeature.SYNC_REPLICATION)


def durability(level: int, milliseconds: int | None = None) -> bytes:
    """Framing extras: a level, and perhaps how long it may take."""
    data = bytes([level])
    if milliseconds is not None:
        data += milliseconds.to_bytes(2, "big")
    return encode_frame_infos((FrameInfo(RequestInfo.DURABILITY, data),))


MAJORITY = durability(1)
