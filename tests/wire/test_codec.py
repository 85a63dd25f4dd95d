"""Every opcode of the codec table: bytes to messages and back, and what is refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.errors import FrameError
from dcp.wire import messages as m
from dcp.wire.codec import NOT_SUPPORTED, TABLE, decode, encode
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.vocabulary import Magic, Opcode, ServerOpcode, Status
from tests.conformance_formats.golden_frames import round_trip
from tests.wire.frames import ROWS, frames_of, golden_cases


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: str(case["name"]))
def test_golden_frames_round_trip(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["hex"])
    assert round_trip(parse_frame(data)) == data


def test_every_opcode_has_a_row_as_request_and_as_answer() -> None:
    for opcode in set(Opcode) - NOT_SUPPORTED:
        assert {(Magic.REQUEST, opcode), (Magic.RESPONSE, opcode)} <= TABLE.keys()
    for server_opcode in ServerOpcode:
        kinds = {(Magic.SERVER_REQUEST, server_opcode), (Magic.SERVER_RESPONSE, server_opcode)}
        assert kinds <= TABLE.keys()
    assert not {opcode for _, opcode in TABLE} & NOT_SUPPORTED


@pytest.mark.parametrize("entry", ROWS, ids=lambda entry: f"{entry[0].name}-{int(entry[1]):02x}")
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_row_round_trips(entry: tuple[Magic, int], data: st.DataObject) -> None:
    frame = data.draw(frames_of(entry))
    assert round_trip(frame) == frame.to_bytes()
    assert parse_frame(frame.to_bytes()) == frame


@pytest.mark.parametrize("entry", ROWS, ids=lambda entry: f"{entry[0].name}-{int(entry[1]):02x}")
def test_extras_of_a_wrong_length_are_refused(entry: tuple[Magic, int]) -> None:
    magic, opcode = entry
    sizes = {form.struct.size for form in TABLE[entry].extras}
    wrong = next(size for size in range(1, 60) if size not in sizes)
    with pytest.raises(FrameError, match=f"extras: found {wrong} bytes, expected"):
        decode(Frame(magic, int(opcode), extras=bytes(wrong)))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (Frame(Magic.REQUEST, Opcode.DCP_NOOP, key=b"k"), "key: found 1 bytes, expected no key"),
        (Frame(Magic.REQUEST, Opcode.DCP_NOOP, value=b"v"), "value: found 1 bytes"),
        (Frame(Magic.RESPONSE, Opcode.DCP_STREAM_REQ, value=bytes(15)), "a multiple of 16"),
        (
            Frame(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, extras=b"\3", value=bytes(36)),
            "version 2.3",
        ),
        (
            Frame(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, extras=b"\2", value=bytes(36)),
            "expected 52 in a snapshot marker v2.2",
        ),
        (Frame(Magic.RESPONSE, Opcode.OBSERVE_SEQNO, value=b"\2" + bytes(26)), "27 in format 0"),
        (
            Frame(
                Magic.RESPONSE,
                Opcode.DCP_STREAM_REQ,
                vbucket_or_status=Status.ROLLBACK,
                value=b"seven b",
            ),
            "found 7 bytes, expected 8",
        ),
    ],
)
def test_malformed_bodies_name_what_and_where(frame: Frame, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        decode(frame)


def test_unknown_opcodes_and_refusals_are_kept_whole() -> None:
    unknown = Frame(Magic.REQUEST, 0xEE, extras=b"e", key=b"k", value=b"v")
    assert decode(unknown) == m.Unknown(b"e", b"k", b"v")
    refused = Frame(Magic.RESPONSE, Opcode.DCP_OPEN, vbucket_or_status=0x24, value=b"{}")
    assert decode(refused) == m.Refusal(b"{}")


@pytest.mark.parametrize(
    ("body", "opcode"),
    [
        (m.GetAllVbSeqnos(state=None, collection=8), Opcode.GET_ALL_VB_SEQNOS),
        (m.Deletion(b"k", 1, 1, nmeta=0, delete_time=5), Opcode.DCP_DELETION),
        (m.Deletion(b"k", 1, 1), Opcode.DCP_DELETION),
        (m.SnapshotMarker(0, 1, 2, max_visible_seqno=1), Opcode.DCP_SNAPSHOT_MARKER),
        (m.SnapshotMarker(0, 1, 2, version=0), Opcode.DCP_SNAPSHOT_MARKER),
        (m.StreamEnd(0), Opcode.DCP_SNAPSHOT_MARKER),
    ],
)
def test_fields_that_no_form_holds_are_refused_not_lost(body: m.Body, opcode: Opcode) -> None:
    with pytest.raises(TypeError):
        encode(body, opcode)


def test_a_field_outside_its_width_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="BufferAck"):
        encode(m.BufferAck(2**32), Opcode.DCP_BUFFER_ACK)


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ({"opcode": 256}, "opcode"),
        ({"datatype": 256}, "datatype"),
        ({"vbucket_or_status": -1}, "vbucket or status"),
        ({"opaque": 2**32}, "opaque"),
        ({"cas": 2**64}, "cas"),
        ({"extras": bytes(256)}, "extras length"),
        ({"key": bytes(2**16)}, "key length"),
        ({"framing_extras": b"x"}, "framing extras length"),
        ({"magic": Magic.ALT_REQUEST, "key": bytes(256)}, "key length"),
        ({"magic": Magic.ALT_REQUEST, "framing_extras": bytes(256)}, "framing extras length"),
    ],
)
def test_a_frame_names_the_field_that_its_header_has_no_room_for(field: Any, named: str) -> None:
    frame = Frame(Magic.REQUEST, Opcode.GET)._replace(**field)
    with pytest.raises(ValueError, match=f"^{named}: found"):
        frame.to_bytes()
