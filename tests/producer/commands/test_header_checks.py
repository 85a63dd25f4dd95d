"""Headers of requests: a datatype, CAS or vbucket where kv_engine's validators allow none."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.commands.dcp_commands import SENT_BY_PRODUCERS
from dcp.server.commands.header_checks import HEADER_RULES, header_fault
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Datatype, HelloFeature, Magic, Opcode, Status
from tests.producer.all_commands import COMMANDS
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
JSON = int(Datatype.JSON)
BODIES: dict[Opcode, m.Body] = {
    Opcode.HELLO: m.Hello(b"x", (HelloFeature.XERROR,)),
    Opcode.GET_ERROR_MAP: m.GetErrorMap(2),
    Opcode.STAT: m.Stat(b"uuid"),
    Opcode.SET: m.Store(b"\0k", b"1", 0, 0),
}
DCP_BODIES: dict[Opcode, m.Body] = {
    Opcode.DCP_CONTROL: m.DcpControl(b"enable_noop", b"true"),
    Opcode.DCP_STREAM_REQ: m.StreamRequest(0, 0, 0, 0, 0, 0),
}
"""One of each form of rule: over a connection it is the same check as in the table."""
LENIENT = {
    Opcode.SELECT_BUCKET,
    Opcode.LIST_BUCKETS,
    Opcode.SET,
    Opcode.REPLACE,
    Opcode.DELETE,
    Opcode.OBSERVE_SEQNO,
    Opcode.GET_FAILOVER_LOG,
    Opcode.DCP_OPEN,
    Opcode.DCP_CONTROL,
    Opcode.DCP_STREAM_REQ,
    Opcode.DCP_CLOSE_STREAM,
    Opcode.DCP_BUFFER_ACK,
    Opcode.DCP_GET_FAILOVER_LOG,
}
"""What takes a CAS (kv_engine's ``ExpectedCas::Any``)."""
WITHOUT_VBUCKET = {
    Opcode.GET_ERROR_MAP,
    Opcode.GET_COLLECTIONS_MANIFEST,
    Opcode.GET_COLLECTION_ID,
    Opcode.GET_SCOPE_ID,
}


def test_every_command_has_a_rule() -> None:
    assert set(HEADER_RULES) == set(COMMANDS) - SENT_BY_PRODUCERS


@pytest.mark.parametrize("opcode", sorted(HEADER_RULES))
def test_what_kv_engine_takes(opcode: int) -> None:
    def passes(frame: Frame) -> bool:
        return not header_fault(frame, {HelloFeature.JSON}, is_dcp=False)

    of_documents = {Opcode.SET, Opcode.ADD, Opcode.REPLACE}
    assert passes(Frame(Magic.REQUEST, opcode))
    assert passes(Frame(Magic.REQUEST, opcode, cas=5)) is (opcode in LENIENT)
    with_json = of_documents | {Opcode.STAT, Opcode.DCP_OPEN}
    assert passes(Frame(Magic.REQUEST, opcode, datatype=JSON)) is (opcode in with_json)
    assert passes(Frame(Magic.REQUEST, opcode, datatype=2)) is (opcode in of_documents)
    at_vbucket = Frame(Magic.REQUEST, opcode, vbucket_or_status=3)
    assert passes(at_vbucket) is (opcode not in WITHOUT_VBUCKET)


@pytest.mark.parametrize("opcode", BODIES, ids=lambda opcode: opcode.name)
def test_odd_headers_on_a_connection(
    cluster: ProducerCluster, connect: Connect, opcode: Opcode
) -> None:
    cluster.set(b"k", b"1")
    _check(connect(cluster).log_in(), BODIES[opcode], opcode)


@pytest.mark.parametrize("opcode", DCP_BODIES, ids=lambda opcode: opcode.name)
def test_odd_headers_on_a_dcp_connection(
    cluster: ProducerCluster, connect: Connect, opcode: Opcode
) -> None:
    _check(connect(cluster).log_in().open_dcp(), DCP_BODIES[opcode], opcode)


def _check(client: RawClient, body: m.Body, opcode: Opcode) -> None:
    """Send what is odd, each refused with a reason, then the request as it should be."""
    odd: list[dict[str, Any]] = [{"datatype": 8 if opcode is Opcode.SET else 2}]
    odd += [{"cas": 5}] if opcode not in LENIENT else []
    odd += [{"vbucket": 3}] if opcode in WITHOUT_VBUCKET else []
    for fields in odd:
        refused = client.call(body, opcode, **fields)
        assert (fields, refused.status) == (fields, Status.EINVAL)
        assert json.loads(refused.value)["error"]["context"].startswith("Request ")
    assert client.call(body, opcode).status == Status.SUCCESS


def test_json_must_have_been_negotiated(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster).log_in((HelloFeature.XERROR,))
    stat = m.Stat(b"uuid")
    assert client.call(stat, Opcode.STAT, datatype=JSON).status == Status.EINVAL
    dcp = client.open_dcp()
    assert dcp.call(stat, Opcode.STAT, datatype=JSON).status == Status.SUCCESS


def test_acknowledgements_with_an_odd_header_are_answered(
    cluster: ProducerCluster, connect: Connect
) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    refused = dcp.call(m.BufferAck(1), Opcode.DCP_BUFFER_ACK, datatype=JSON)
    assert (refused.opcode, refused.status) == (Opcode.DCP_BUFFER_ACK, Status.EINVAL)
    closed = dcp.call(m.Empty(), Opcode.DCP_CLOSE_STREAM, datatype=JSON)
    assert closed.status == Status.EINVAL
