"""Differences between two frames, and those that are allowed."""

import pytest

from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.producer_conformance.comparison import differences

ITEM = encode(m.Mutation(b"k", b"{}", 5, 1), Opcode.DCP_MUTATION, opaque=7, cas=9, datatype=1)
NOOP = encode(m.Empty(), Opcode.DCP_NOOP, opaque=1)

MANIFEST = b'{"scopes":[{"collections":[%s,%s],"name":"s","uid":"8"}],"uid":"2"}'
C8, C9 = b'{"name":"a","uid":"8"}', b'{"name":"b","uid":"9"}'


def answer(value: bytes, opcode: int, status: int = Status.SUCCESS) -> Frame:
    return Frame(Magic.RESPONSE, opcode, vbucket_or_status=status, value=value)


def error(value: bytes) -> Frame:
    return answer(value, Opcode.DCP_OPEN, Status.EINVAL)


MAP = b'{"vBucketServerMap":{"vBucketMap":[[0],[0]]}}'
SMALLER_MAP = MAP.replace(b"[0],", b"")


def not_held(value: bytes) -> Frame:
    return answer(value, Opcode.DCP_STREAM_REQ, Status.NOT_MY_VBUCKET)


SAME = {
    "a client has this map": (
        answer(MAP, Opcode.GET_CLUSTER_CONFIG),
        answer(b"", Opcode.GET_CLUSTER_CONFIG),
    ),
    "a server that is starting has no map to tell": (not_held(MAP), not_held(b"")),
    "a NOOP's opaque": (NOOP, NOOP._replace(opaque=2)),
    "cache hint": (ITEM, ITEM._replace(extras=ITEM.extras[:-1] + b"\x03")),
    "an error's text": (error(b'{"error":{"context":"a"}}'), error(b'{"error":{"ref":"b"}}')),
    "salt": (
        answer(b"r=x,s=a,i=1", Opcode.SASL_AUTH, Status.AUTH_CONTINUE),
        answer(b"r=y,s=b,i=2", Opcode.SASL_AUTH, Status.AUTH_CONTINUE),
    ),
    "the order in a manifest": (
        answer(MANIFEST % (C8, C9), Opcode.GET_COLLECTIONS_MANIFEST),
        answer(MANIFEST % (C9, C8), Opcode.GET_COLLECTIONS_MANIFEST),
    ),
    "how long it took": (
        answer(b"", Opcode.DCP_CONTROL),
        answer(b"", Opcode.DCP_CONTROL)._replace(
            magic=Magic.ALT_RESPONSE, framing_extras=b"\x02\0\x09"
        ),
    ),
    "a feature of documents": (
        answer(b"\x00\x06", Opcode.HELLO),
        answer(b"\x00\x06\x00\x0f", Opcode.HELLO),
    ),
}
DIFFERENT = {
    "the recorded server has a map": (not_held(b""), not_held(MAP), "value"),
    "a client has no map": (
        answer(b"", Opcode.GET_CLUSTER_CONFIG),
        answer(MAP, Opcode.GET_CLUSTER_CONFIG),
        "value",
    ),
    "a map of other vbuckets": (not_held(MAP), not_held(SMALLER_MAP), "value"),
    "a stream's opaque": (ITEM, ITEM._replace(opaque=8), "opaque"),
    "cas": (ITEM, ITEM._replace(cas=8), "cas"),
    "extras": (ITEM, ITEM._replace(extras=b"\x01" + ITEM.extras[1:]), "extras"),
    "value": (ITEM, ITEM._replace(value=b"[]"), "value"),
    "an error without text": (error(b'{"error":{"context":"a"}}'), error(b""), "value"),
    "more than an error's text": (
        error(b'{"error":{"context":"a"}}'),
        error(b'{"error":{"context":"a"},"manifest_uid":"1"}'),
        "value",
    ),
    "a feature of streams": (
        answer(b"\x00\x06", Opcode.HELLO),
        answer(b"\x00\x06\x00\x12", Opcode.HELLO),
        "value",
    ),
    "what is in a manifest": (
        answer(MANIFEST % (C8, C9), Opcode.GET_COLLECTIONS_MANIFEST),
        answer(MANIFEST % (C8, C8), Opcode.GET_COLLECTIONS_MANIFEST),
        "value",
    ),
    "no map": (
        answer(b"", Opcode.DCP_STREAM_REQ, Status.NOT_MY_VBUCKET),
        answer(b'{"vBucketServerMap":{"vBucketMap":[]}}', Opcode.DCP_STREAM_REQ, 7),
        "value",
    ),
}


@pytest.mark.parametrize("what", SAME)
def test_same(what: str) -> None:
    ours, recorded = SAME[what]
    assert list(differences(ours, recorded)) == []


@pytest.mark.parametrize("what", DIFFERENT)
def test_different(what: str) -> None:
    ours, recorded, field = DIFFERENT[what]
    assert [fault.partition(":")[0] for fault in differences(ours, recorded)] == [field]
