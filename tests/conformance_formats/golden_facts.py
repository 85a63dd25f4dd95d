"""Extracts a frame's contents as named facts: header, framing extras, body, and the decoded body.

A fact is a list of readings; a case file may mean any of them (a key with or without its collection
prefix, a value as sent or inflated).
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum, IntFlag
from typing import Any

from dcp.errors import FrameError
from dcp.types import U64_MAX, FailoverEntry
from dcp.wire import messages as m
from dcp.wire import vocabulary as v
from dcp.wire.codec import decode
from dcp.wire.documents import decode_document
from dcp.wire.frame import Frame
from dcp.wire.frame_info import (
    RequestInfo,
    ResponseInfo,
    decode_frame_infos,
    stream_id_of,
)
from dcp.wire.leb128 import decode_leb128
from dcp.wire.snappy import inflate
from dcp.wire.system_event import decode_system_event
from tests.conformance_formats.cache_records import CacheRecord, decode_cache_records
from tests.conformance_formats.matching import Number, Record

Facts = dict[str, list[Any]]

_LEVELS = {
    0: ("none",),
    1: ("majority",),
    2: ("majority and persist on active", "majority and persist on master",
        "majority and persist to active", "majority and persist"),
    3: ("persist to majority",),
}  # fmt: skip
_EVENTS = {
    0: ("begin collection", "create collection", "collection created", "begin"),
    1: ("end collection", "drop collection", "collection dropped", "end"),
    2: ("flush collection", "flush"),
    3: ("create scope", "scope created", "begin scope"),
    4: ("drop scope", "scope dropped", "end scope"),
    5: ("modify collection", "modify"),
}


def _named(value: int, kind: type[IntEnum]) -> Number:
    return Number(
        value, tuple(name for name, member in kind.__members__.items() if member == value)
    )


def _flags(value: int, kind: type[IntFlag]) -> Number:
    return Number(value, () if value else ("none", "0"), kind)


def facts_of(frame: Frame) -> Facts:
    """Return all that is known of a frame, by canonical name.

    Raises:
        FrameError: a part is malformed.
    """
    body = decode(frame)
    facts: Facts = {}
    sources = (_body, _header, _framing, _parts, _sasl, _json, _layers, _records)
    for source in sources:
        for fact, reading in source(frame, body):
            facts.setdefault(fact, []).append(reading)
    return facts


def _header(frame: Frame, _: m.Body) -> Iterator[tuple[str, Any]]:
    opcodes: type[IntEnum] = (
        v.ServerOpcode
        if frame.magic in (v.Magic.SERVER_REQUEST, v.Magic.SERVER_RESPONSE)
        else v.Opcode
    )
    yield "magic", _named(frame.magic, v.Magic)
    yield "opcode", _named(frame.opcode, opcodes)
    yield "total_len", v.HEADER_BYTES + frame.body_bytes
    yield "body_len", frame.body_bytes
    yield "opaque", frame.opaque
    yield "cas", frame.cas
    yield "extras_len", len(frame.extras)
    yield "key_len", len(frame.key)
    yield "value_len", len(frame.value)
    yield "framing_extras_len", len(frame.framing_extras)
    yield "datatype", _flags(frame.datatype, v.Datatype)
    yield "datatype_bits", _flags(frame.datatype, v.Datatype)
    if frame.magic.is_response:
        yield "status", _named(frame.status, v.Status)
        yield "status_name", _named(frame.status, v.Status)
    else:
        yield "vbucket", frame.vbucket


def _framing(frame: Frame, _: m.Body) -> Iterator[tuple[str, Any]]:
    if not frame.magic.is_alternative:
        return
    infos = decode_frame_infos(frame.framing_extras)
    kind: type[IntEnum] = ResponseInfo if frame.magic.is_response else RequestInfo
    yield "framing_extras", frame.framing_extras
    yield (
        "framing_extras",
        [
            Record(((("id",), _named(i.id, kind)), (("data", "value"), _data(i.data)),
                    (("len", "length"), len(i.data))))
            for i in infos
        ],
    )  # fmt: skip
    if len(infos) == 1:
        yield "frame_info_id", _named(infos[0].id, kind)
        yield "frame_info_len", len(infos[0].data)
    if frame.magic.is_response:
        for info in infos:
            number = int.from_bytes(info.data, "big")
            yield _ANSWER_INFOS.get(info.id, "frame_info"), number
            if info.id == ResponseInfo.SERVER_DURATION:
                # The frame has a compressed duration (kv_engine ``docs/BinaryProtocol.md``).
                yield "server_duration_us", number**1.74 / 2
    else:
        stream_id = stream_id_of(frame.framing_extras)
        if stream_id is not None:
            yield "stream_id", stream_id
        for info in infos:
            if info.id in (RequestInfo.BARRIER, RequestInfo.PRESERVE_TTL):
                yield RequestInfo(info.id).name.lower(), True
            elif info.id == RequestInfo.DURABILITY:
                yield "level", Number(info.data[0], _LEVELS.get(info.data[0], ()))


_ANSWER_INFOS = {
    0: "server_duration_encoded",
    1: "read_units",
    2: "write_units",
    3: "throttle_duration",
}


def _data(data: bytes) -> Any:
    return Number(int.from_bytes(data, "big"), (data.hex(), f"0x{data.hex()}"))


def _parts(frame: Frame, _: m.Body) -> Iterator[tuple[str, Any]]:
    yield "extras", frame.extras
    yield "key", frame.key
    yield "value", frame.value


_FLAG_KINDS: dict[type[m.Body], type[IntFlag]] = {
    m.DcpOpen: v.OpenFlag,
    m.StreamRequest: v.StreamFlag,
    m.AddStream: v.StreamFlag,
    m.SnapshotMarker: v.SnapshotFlag,
}
_ENUM_FIELDS: dict[tuple[type[m.Body], str], type[IntEnum]] = {
    (m.StreamEnd, "reason"): v.EndReason,
    (m.SetVbucketState, "state"): v.VbucketState,
    (m.GetAllVbSeqnos, "state"): v.VbucketState,
    (m.OsoSnapshot, "flags"): v.OsoFlag,
}
_RENAMED = {
    (m.ObserveSeqnoAnswer, "vb"): "vbucket",
    (m.SystemEvent, "key"): "event_name",
    (m.IdAnswer, "collection_id"): "collection",
    (m.DcpControl, "value"): "control_value",
    (m.StreamRequest, "value"): "filter",
    (m.DcpOpen, "value"): "value",
}


def _body(frame: Frame, body: m.Body) -> Iterator[tuple[str, Any]]:
    for field in fields(body):
        value = getattr(body, field.name)
        if value is None:
            continue
        name = _RENAMED.get((type(body), field.name), field.name)
        yield name, _reading(body, field.name, value)
    if isinstance(body, m.IdAnswer) and frame.opcode == v.Opcode.GET_SCOPE_ID:
        yield "scope", body.collection_id
    if isinstance(body, m.FailoverLogAnswer) and body.entries:
        yield "newest_uuid", body.entries[0].vb_uuid
        yield "newest_seqno", body.entries[0].seqno
        yield "vb_uuid", body.entries[0].vb_uuid
    if isinstance(body, m.SnapshotMarker) and body.version is None:
        yield "version", Number(1, ("1", "v1", "1.0"))
    if isinstance(body, m.Hello):
        yield from _agent(body.agent)
    if isinstance(body, m.SystemEvent):
        yield from _system_event(body)
    if frame.opcode == v.Opcode.SASL_LIST_MECHS:
        yield "mechanisms", frame.value.decode().split()
    if isinstance(body, m.DcpControl):
        yield "key", body.name


def _reading(body: m.Body, name: str, value: Any) -> Any:
    kind = type(body)
    if name == "flags" and kind in _FLAG_KINDS:
        return _flags(value, _FLAG_KINDS[kind])
    if (kind, name) in _ENUM_FIELDS:
        return _named(value, _ENUM_FIELDS[kind, name])
    if name == "features":
        return [_named(feature, v.HelloFeature) for feature in value]
    if name == "event":
        return Number(value, _EVENTS.get(value, ()))
    if name == "level":
        return Number(value, _LEVELS.get(value, ()))
    if kind is m.SnapshotMarker and name == "version":
        return Number(value, (f"2.{value}", f"v2.{value}"))
    if name == "end" and value == U64_MAX:
        return Number(value, ("max", "infinity", "inf", "forever", "u64max", "2^64-1", "end"))
    if name == "entries":
        return [_log_entry(entry) for entry in value]
    if name == "seqnos":
        return [
            Record(((("vbucket", "vb", "vbid", "id", "vbucket_id", "vb_id"), vbucket),
                    (("seqno", "high_seqno", "by_seqno", "high"), seqno)))
            for vbucket, seqno in value
        ]  # fmt: skip
    return value


def _log_entry(entry: FailoverEntry) -> Record:
    uuid = (("vb_uuid", "uuid", "vbuuid", "vbucket_uuid", "id"), entry.vb_uuid)
    return Record((uuid, (("seqno", "by_seqno", "start_seqno", "seq"), entry.seqno)))


def _agent(agent: bytes) -> Iterator[tuple[str, Any]]:
    described = _parsed(agent)
    if isinstance(described, dict):
        yield "agent", described.get("a")
        yield "connection_id", described.get("i")


def _system_event(body: m.SystemEvent) -> Iterator[tuple[str, Any]]:
    event = decode_system_event(body)
    names = {"scope_id": "scope", "collection_id": "collection", "max_ttl_seconds": "max_ttl"}
    for field in fields(event) if event else ():
        value = getattr(event, field.name)
        if value is not None and field.name != "name":
            yield names.get(field.name, field.name), value


def _sasl(frame: Frame, _: m.Body) -> Iterator[tuple[str, Any]]:
    if frame.opcode not in (v.Opcode.SASL_AUTH, v.Opcode.SASL_STEP):
        return
    if frame.key == b"PLAIN":
        __, user, password = frame.value.split(b"\0")
        yield "user", user
        yield "password", password
        return
    names = {"n": "user", "r": "nonce", "s": "salt", "i": "iterations", "p": "proof"}
    names |= {"v": "server_signature", "c": "channel_binding"}
    for part in frame.value.decode(errors="replace").split(","):
        letter, text = part[:1], part[2:]
        if letter in names and text:
            yield names[letter], text.encode()


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None


def _json(frame: Frame, _: m.Body) -> Iterator[tuple[str, Any]]:
    """The members of a JSON value of a command or answer (not of a document)."""
    is_document = frame.opcode in _DOCUMENTS and frame.magic in (
        v.Magic.REQUEST,
        v.Magic.ALT_REQUEST,
    )
    parsed = None if is_document else _parsed(frame.value)
    if not isinstance(parsed, dict):
        return
    yield "config", frame.value
    yield "filter", frame.value
    pending: list[dict[str, Any]] = [parsed]
    while pending:
        for name, member in pending.pop(0).items():
            yield {"revEpoch": "epoch", "sid": "stream_id"}.get(name, name), member
            if isinstance(member, dict):
                pending.append(member)


_DOCUMENTS = frozenset(
    {v.Opcode.DCP_MUTATION, v.Opcode.DCP_DELETION, v.Opcode.DCP_EXPIRATION, v.Opcode.DCP_PREPARE}
)
_KEYED = _DOCUMENTS | {v.Opcode.DCP_COMMIT, v.Opcode.DCP_ABORT}


def _layers(frame: Frame, _: m.Body) -> Iterator[tuple[str, Any]]:
    if frame.magic.is_response:
        return
    if frame.opcode in _KEYED:
        yield from _collection(frame.key)
    if frame.opcode not in _DOCUMENTS:
        return
    document = decode_document(frame.value, frame.datatype)
    yield "body", document.body
    yield "value", document.body
    whole = frame.value
    if frame.datatype & v.Datatype.SNAPPY and frame.value:
        whole = inflate(frame.value)
        yield "value", whole
        yield "value_decompressed", whole
        yield "value_decompressed", document.body
    if document.xattrs is not None:
        pair_lengths = [len(name) + len(value) + 2 for name, value in document.xattrs]
        yield "xattr_section_len", int.from_bytes(whole[:4], "big")
        yield "pair_len", pair_lengths
        yield "xattrs", {name.decode(): value for name, value in document.xattrs}
        if len(pair_lengths) == 1:
            yield "pair_len", Number(pair_lengths[0])
            yield "xattr_key", document.xattrs[0][0]
            yield "xattr_value", document.xattrs[0][1]


def _collection(key: bytes) -> Iterator[tuple[str, Any]]:
    try:
        collection_id, length = decode_leb128(key)
    except FrameError:
        return
    encoded = key[:length].hex()
    yield "collection", Number(collection_id, (f"{collection_id:#x} -> leb128 {encoded}", encoded))
    yield "leb128", key[:length]
    yield "key", key[length:]


def _records(_: Frame, body: m.Body) -> Iterator[tuple[str, Any]]:
    if not isinstance(body, m.CacheTransfer):
        return
    records = decode_cache_records(body.value)
    yield "records", [_cache_record(record) for record in records]
    if len(records) == 1:
        for names, value in _cache_record(records[0]).columns:
            for name in names:
                if name not in ("cas", "datatype", "key_len"):  # the frame has its own
                    yield name, value
                yield f"record_{name}", value
                yield f"item_{name}", value
        yield from _collection(records[0].key)


def _cache_record(record: CacheRecord) -> Record:
    return Record(
        (
            (("cas",), record.cas),
            (("by_seqno", "seqno"), record.by_seqno),
            (("rev_seqno", "rev"), record.rev_seqno),
            (("value_len", "vallen"), len(record.value)),
            (("flags",), record.flags),
            (("expiry", "expiration", "exptime"), record.expiry),
            (("key_len", "keylen"), len(record.key)),
            (("datatype",), _flags(record.datatype, v.Datatype)),
            (("cache_hint", "nru", "cacheHint", "hint"), record.cache_hint),
            (("key",), record.key),
            (("value",), record.value),
        )
    )
