"""An item of a drafted scenario: what a stream's message shows."""

from typing import Final

from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.leb128 import split_collection_key
from dcp.wire.system_event import decode_system_event
from dcp.wire.vocabulary import Opcode
from tests.producer_conformance.drafted_vbucket import Raw

_SHOWN: Final = (m.Mutation, m.Deletion, m.Expiration, m.Prepare, m.Commit, m.Abort)


def item_of(frame: Frame, body: m.Body, *, has_collections: bool) -> Raw:
    """Return what a message shows, as a scenario has it; nothing for what has no seqno."""
    if isinstance(body, m.SystemEvent):
        event = decode_system_event(body)
        if event is None:
            return {}
        names = ("manifest_uid", "scope_id", "collection_id", "name", "max_ttl_seconds")
        values = {name: getattr(event, name, None) for name in names}
        told = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in values.items()
            if value is not None
        }
        return {"seqno": body.by_seqno, "event": type(event).__name__, **told}
    if not isinstance(body, _SHOWN):
        return {}
    collection_id, key = split_collection_key(body.key) if has_collections else (0, frame.key)
    item: Raw = {"key": _text(key)} | ({"collection_id": collection_id} if collection_id else {})
    if isinstance(body, m.Commit):
        return {"seqno": body.commit_seqno, "prepared_seqno": body.prepared_seqno} | item
    if isinstance(body, m.Abort):
        prepared = {"prepared_seqno": body.prepared_seqno, "is": "abort"}
        return {"seqno": body.abort_seqno} | prepared | item
    item |= {"rev": max(1, body.rev_seqno), "cas": frame.cas, "datatype": frame.datatype}
    item["value"] = _text(body.value)
    for name in ("flags", "expiry", "delete_time", "level"):
        item |= {name: getattr(body, name)} if getattr(body, name, None) else {}
    if isinstance(body, m.Prepare):
        item |= {"deletes": True} if body.deleted else {}
    kind = Opcode(frame.opcode).name.removeprefix("DCP_").lower()
    return {"seqno": body.by_seqno} | ({"is": kind} if kind != "mutation" else {}) | item


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
    return text if text.isprintable() and not text.startswith("hex:") else f"hex:{data.hex()}"
