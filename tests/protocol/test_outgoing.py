"""What a connection has to say is written once, in order."""

from dcp.protocol.outgoing import Outgoing
from dcp.wire import messages as m
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode, Status


def test_in_order_and_once() -> None:
    outgoing = Outgoing()
    outgoing.request(m.BufferAck(7), Opcode.DCP_BUFFER_ACK)
    outgoing.request(m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=3, opaque=9)
    outgoing.answer(Opcode.DCP_NOOP, 5)
    outgoing.answer(Opcode.DCP_MUTATION, 6, Status.ERANGE)
    block = FrameSplitter().feed(outgoing.take())
    found = [block.frame(index) for index in range(len(block))]
    assert [(f.magic, f.opcode, f.opaque) for f in found] == [
        (Magic.REQUEST, Opcode.DCP_BUFFER_ACK, 0),
        (Magic.REQUEST, Opcode.DCP_CLOSE_STREAM, 9),
        (Magic.RESPONSE, Opcode.DCP_NOOP, 5),
        (Magic.RESPONSE, Opcode.DCP_MUTATION, 6),
    ]
    assert (found[1].vbucket, found[2].status, found[3].status) == (3, 0, Status.ERANGE)
    assert outgoing.take() == b""
